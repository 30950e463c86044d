"""The role of kernels by what was launched around them: operators as any code has them, without
shapes.
"""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from computeflow.telemetry.kineto.kineto_reader import read_trace
from computeflow.telemetry.traces.kernel_precision import (
    PrecisionRows,
    full_precision_rows,
    precision_hint,
)
from computeflow.telemetry.traces.kernel_roles import (
    AttentionRows,
    evaluation_rows,
    single_tensor_optimizer_rows,
    unfused_attention_rows,
)
from computeflow.telemetry.traces.launches import launches
from computeflow.telemetry.traces.rank_accounts import roles
from computeflow.telemetry.traces.trace import Trace
from kineto_maker import Maker

OWN = Path(__file__).parent / "data" / "h200_traces"
FOREIGN = Path(__file__).parents[1] / "benchmarks" / "foreign" / "traces"
MAIN, AUTOGRAD = 1, 2


@dataclass
class Host:
    """Operators and their kernels, one after the other; kernels are named as the test likes."""

    maker: Maker = field(default_factory=Maker)
    thread: int = MAIN
    recorded: bool = True
    """Whether autograd records operators."""

    def op(self, name: str, *inside: Callable[[], None] | str, **args: Any) -> None:
        """Add an operator with other operators or kernels (by name) inside."""
        first, start = len(self.maker.events), self.maker.host
        self.maker.host += 1.0
        for part in inside:
            if isinstance(part, str):
                self.maker.kernel(part, 10.0)
            else:
                part()
        self.maker.host += 1.0
        if self.recorded and self.thread == MAIN:
            args |= {"Sequence number": 1, "Fwd thread id": 0}
        self.maker.span("cpu_op", name, start, self.maker.host - start - 0.5, **args)
        for event in self.maker.events[first:]:
            if event["pid"] == 1:
                event["tid"] = self.thread
        self.maker.host += 1.0

    def marked(self, name: str, inside: Callable[[], None]) -> None:
        start = self.maker.host
        inside()
        self.maker.span("user_annotation", name, start, self.maker.host - start - 0.5)

    def linear(self) -> None:
        self.op("aten::linear", lambda: self.op("aten::addmm", "linear_gemm"))

    def norm(self) -> None:
        self.op("aten::native_layer_norm", "norm")

    def batched(self, kernel: str) -> None:
        self.op("aten::matmul", lambda: self.op("aten::clone", "clone"), lambda: self.bmm(kernel))

    def bmm(self, kernel: str) -> None:
        self.op("aten::bmm", "Memset (Device)", kernel)

    def softmax(self) -> None:
        self.op("aten::softmax", lambda: self.op("aten::_softmax", "softmax"))

    def attention(self) -> None:
        """Add attention as Transformers writes it out, between the linear layers around it."""
        self.linear()
        self.batched("scores_gemm")
        self.op("aten::mul", "scale")
        self.op("aten::add", "mask")
        self.softmax()
        self.op("aten::native_dropout", "dropout")
        self.batched("values_gemm")
        self.op("aten::clone", "after")
        self.linear()

    def attention_backward(self) -> None:
        self.thread = AUTOGRAD
        self.node("AddmmBackward0", lambda: self.op("aten::mm", "linear_gemm"))
        self.node("BmmBackward0", lambda: self.bmm("dv_gemm"), lambda: self.bmm("dp_gemm"))
        softmax = "aten::_softmax_backward_data"
        self.node("SoftmaxBackward0", lambda: self.op(softmax, "softmax_backward"))
        self.node("MulBackward0", lambda: self.op("aten::mul", "scale_backward"))
        self.node("BmmBackward0", lambda: self.bmm("dq_gemm"), lambda: self.bmm("dk_gemm"))
        self.node("AddmmBackward0", lambda: self.op("aten::mm", "linear_gemm"))
        self.thread = MAIN

    def node(self, name: str, *inside: Callable[[], None]) -> None:
        self.op(f"autograd::engine::evaluate_function: {name}", *inside)

    def layer(self) -> None:
        self.norm()
        self.linear()
        self.op("aten::gelu", "gelu")
        self.linear()

    def training_pass(self) -> None:
        self.op("aten::embedding", "embedding")
        for _ in range(6):
            self.layer()
        self.thread = AUTOGRAD
        for _ in range(6):
            self.node("AddmmBackward0", lambda: self.op("aten::mm", "linear_gemm"))
        self.thread = MAIN

    def evaluation(self) -> None:
        self.recorded = False
        self.op("aten::embedding", "eval_embedding")
        for _ in range(6):
            self.op("aten::native_layer_norm", "eval_norm")
            self.op("aten::addmm", "eval_gemm")
            self.op("aten::gelu", "eval_gelu")
        self.op("aten::_log_softmax", "eval_loss")
        self.recorded = True

    def trace(self, folder: Path) -> Trace:
        return read_trace(self.maker.write(folder), detailed=True)


def kernels(trace: Trace, rows: np.ndarray[Any, Any]) -> list[str]:
    return [trace.names[name] for name in trace.device.name[rows]]


def attention(trace: Trace) -> AttentionRows:
    return unfused_attention_rows(trace, launches(trace))


FORWARD = (
    "clone,Memset (Device),scores_gemm,scale,mask,softmax,dropout,clone,Memset (Device),values_gemm"
)
BACKWARD = "dv_gemm,dp_gemm,softmax_backward,scale_backward,dq_gemm,dk_gemm"


def test_attention_written_out_reaches_from_its_first_to_its_last_product(tmp_path: Path) -> None:
    host = Host()
    host.attention()
    host.layer()
    host.attention()
    host.attention_backward()
    trace = host.trace(tmp_path)
    found = attention(trace)
    whole = [name for name in kernels(trace, found.all) if "backward" not in name]
    assert whole[:20] == FORWARD.split(",") * 2
    without_fills = [name for name in kernels(trace, found.all) if "Memset" not in name]
    assert without_fills[-6:] == BACKWARD.split(",")
    products = ["scores_gemm", "values_gemm"] * 2 + ["dv_gemm", "dp_gemm", "dq_gemm", "dk_gemm"]
    assert kernels(trace, found.products) == products


def multihead(host: Host) -> None:
    """nn.MultiheadAttention that returns its weights."""
    host.op("aten::baddbmm", "scores_gemm")
    host.softmax()
    host.bmm("values_gemm")


def relative_bias(host: Host) -> None:
    """T5, which looks its bias up between the product and the softmax."""
    host.batched("scores_gemm")
    host.op("aten::embedding", "bias")
    host.op("aten::add_", "add")
    host.softmax()
    host.batched("values_gemm")


def math_path(host: Host) -> None:
    """The path of scaled_dot_product_attention that fuses nothing."""
    host.op(
        "aten::_scaled_dot_product_attention_math",
        lambda: host.op("aten::mul", "scale_query"),
        lambda: host.batched("scores_gemm"),
        lambda: host.op("aten::_safe_softmax", host.softmax),
        lambda: host.batched("values_gemm"),
    )


def compiled(host: Host) -> None:
    host.bmm("scores_gemm")
    host.op("## Call CompiledFxGraph ##", "triton_per_fused__softmax_mul_3")
    host.bmm("values_gemm")


def einsum(host: Host) -> None:
    host.op("aten::einsum", lambda: host.bmm("scores_gemm"))
    host.softmax()
    host.op("aten::einsum", lambda: host.bmm("values_gemm"))


@pytest.mark.parametrize("write", [multihead, relative_bias, math_path, compiled, einsum])
def test_attention_is_seen_however_it_is_written(
    write: Callable[[Host], None], tmp_path: Path
) -> None:
    host = Host()
    host.linear()
    write(host)
    inside = len([event for event in host.maker.events if event["cat"] == "kernel"]) - 1
    host.linear()
    trace = host.trace(tmp_path)
    found = attention(trace)
    assert found.all.sum() == inside
    assert kernels(trace, found.products) == ["scores_gemm", "values_gemm"]


def fused(host: Host) -> None:
    host.linear()
    host.op("aten::_scaled_dot_product_flash_attention", "flash_fwd_kernel")
    host.linear()


def router(host: Host) -> None:
    """A mixture of experts: its router is no batched product, its experts are."""
    host.batched("expert_gemm")
    host.linear()
    host.softmax()
    host.bmm("expert_gemm")
    host.bmm("expert_gemm")


def class_loss(host: Host) -> None:
    host.bmm("some_gemm")
    host.op("aten::_log_softmax", "log_softmax")
    host.op("aten::log_softmax", "log_softmax")
    host.bmm("some_gemm")


def unknown_product(host: Host) -> None:
    """A router whose product is launched by no operator that torch knows."""
    host.bmm("some_gemm")
    host.op("mylib::route", "my_gemm_kernel")
    host.softmax()
    host.bmm("some_gemm")


def no_softmax(host: Host) -> None:
    host.bmm("some_gemm")
    host.op("aten::gelu", "gelu")
    host.bmm("some_gemm")


@pytest.mark.parametrize("write", [fused, router, class_loss, unknown_product, no_softmax])
def test_what_is_no_written_attention(write: Callable[[Host], None], tmp_path: Path) -> None:
    host = Host()
    write(host)
    assert not attention(host.trace(tmp_path)).all.any()


def test_evaluation_is_found_with_its_first_and_last_kernels(tmp_path: Path) -> None:
    host = Host()
    for _ in range(2):
        host.training_pass()
        host.evaluation()
        host.evaluation()
    host.training_pass()
    trace = host.trace(tmp_path)
    found = kernels(trace, evaluation_rows(trace, launches(trace)))
    every = kernels(trace, np.ones(len(trace.device), bool))
    assert found == [name for name in every if "eval" in name]
    assert found.count("eval_gemm") == 24


def moving_average(host: Host) -> None:
    for _ in range(40):
        host.op("aten::lerp_", "lerp")


def newton_schulz(host: Host) -> None:
    """The products of an optimizer that is none of torch's classes."""
    for _ in range(20):
        host.op("aten::mm", "some_gemm")
        host.op("aten::mul", "mul")


def own_optimizer(host: Host) -> None:
    host.marked("Optimizer.step#Muon.step", lambda: newton_schulz(host))


def metric(host: Host) -> None:
    host.op("aten::linear", "some_gemm")
    host.op("aten::mm", "some_gemm")


def custom_function(host: Host) -> None:
    """A function with its own backward pass: autograd records it, and not what is inside."""

    def inside() -> None:
        host.recorded = False
        for _ in range(12):
            host.layer()
        host.recorded = True

    host.recorded = True
    host.op("CheckpointFunction", inside)


@pytest.mark.parametrize(
    "work", [moving_average, newton_schulz, own_optimizer, metric, custom_function]
)
def test_what_is_no_evaluation(work: Callable[[Host], None], tmp_path: Path) -> None:
    host = Host()
    host.training_pass()
    host.recorded = False
    work(host)
    host.recorded = True
    host.training_pass()
    trace = host.trace(tmp_path)
    assert not evaluation_rows(trace, launches(trace)).any()


def test_a_moving_average_before_an_evaluation_is_not_all_of_it(tmp_path: Path) -> None:
    host = Host()
    host.training_pass()
    host.recorded = False
    moving_average(host)
    host.evaluation()
    host.evaluation()
    host.training_pass()
    trace = host.trace(tmp_path)
    found = kernels(trace, evaluation_rows(trace, launches(trace)))
    assert found.count("eval_gemm") == 12 and found.count("lerp") <= 4


def test_inference_alone_is_no_evaluation(tmp_path: Path) -> None:
    host = Host()
    host.linear()
    host.evaluation()
    trace = host.trace(tmp_path)
    assert not evaluation_rows(trace, launches(trace)).any()


PRECISIONS = {
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>": "float32",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_ffma_execute_kernel": "float32",
    "ampere_sgemm_128x64_nn": "float32",
    "ampere_scudnn_128x64_relu_medium_nn_v1": "float32",
    "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4>": "float32",
    "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1>": "float32",
    "Cijk_Ailk_Bljk_SB_MT128x128x8_SE_K1": "float32",
    "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4": "tf32",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4>": "tf32",
    "nvjet_sm90_sss_128x128_32x4_NNN": "tf32",
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw": "tf32",
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT": "",
    "nvjet_hsh_256x128_64x4": "",
    "nvjet_sm90_ddd_64x64_32x4_NNN": "",
    "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align1>": "",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64": "",
    "void gemvNSP_kernel<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 1, 32>": "",
    "ampere_fp16_s16816gemm_fp16_128x64_ldg8_stages_64x4_tn": "",
    "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32": "",
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>": "",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16": "",
}


def precision(trace: Trace) -> PrecisionRows:
    found = launches(trace)
    return full_precision_rows(trace, found, roles(trace, found))


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_kernel_says_in_which_precision_it_multiplies(name: str, tmp_path: Path) -> None:
    host = Host()
    host.op("aten::mm", name)
    trace = host.trace(tmp_path)
    found = precision(trace)
    expected = PRECISIONS[name]
    assert bool(found.products.any()) == (expected == "float32")
    assert bool(found.tf32.any()) == (expected == "tf32") == (precision_hint(trace) == "tf32")
    assert not found.attention.any()


def test_operand_types_tell_where_a_name_does_not(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
    host = Host()
    host.op("aten::mm", "unknown_kernel", **shapes)
    host.op("aten::mm", "copy_elementwise", "nvjet_sm90_tst_64x64", **shapes)  # autocast
    trace = host.trace(tmp_path)
    assert kernels(trace, precision(trace).products) == ["unknown_kernel"]


def test_other_kernels_count_where_most_products_are_in_float32(tmp_path: Path) -> None:
    host = Host()
    host.op("aten::mm", "ampere_sgemm_128x64_nn")
    host.op("aten::add", "add")
    host.op("aten::sdpa", "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention)")
    host.marked("Optimizer.step#SGD.step", lambda: host.op("aten::add_", "update"))
    trace = host.trace(tmp_path)
    assert kernels(trace, precision(trace).others) == ["add"]
    assert precision(trace).attention.sum() == 1
    for _ in range(2):
        host.op("aten::mm", "nvjet_sm90_tst_64x64")
    assert not precision(host.trace(tmp_path)).others.any()


UPDATES = {
    "void at::native::vectorized_elementwise_kernel<4, at::native::addcdiv>": True,
    "void at::native::unrolled_elementwise_kernel<lerp>": True,
    "multi_tensor_apply_kernel<TensorListMetadata<3>, BinaryOpListAlphaFunctor<float>>": False,
    "multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor>": False,
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float>>": False,
    "kOptimizerStatic8bit2StateBlockwise<__nv_bfloat16, 0, 256, 1>": False,
    "triton_poi_fused_add_mul_0": False,
}


@pytest.mark.parametrize("name", UPDATES)
def test_an_optimizer_updates_one_tensor_at_a_time_or_many(name: str, tmp_path: Path) -> None:
    host = Host(recorded=False)
    host.linear()
    host.marked("Optimizer.step#AdamW.step", lambda: host.op("aten::update", name))
    trace = host.trace(tmp_path)
    found = launches(trace)
    single = single_tensor_optimizer_rows(trace, found, roles(trace, found))
    assert kernels(trace, single) == ([name] if UPDATES[name] else [])


def test_an_optimizer_with_products_has_no_other_form(tmp_path: Path) -> None:
    host = Host(recorded=False)
    own_optimizer(host)
    host.marked("Optimizer.step#AdamW.step", lambda: host.op("aten::add_", "update"))
    trace = host.trace(tmp_path)
    found = launches(trace)
    single = single_tensor_optimizer_rows(trace, found, roles(trace, found))
    assert kernels(trace, single) == ["update"]


def test_passes_that_a_closure_runs_are_not_the_optimizer(tmp_path: Path) -> None:
    def step() -> None:
        host.training_pass()
        host.recorded = False
        host.op("aten::add_", "update")

    host = Host()
    host.marked("Optimizer.step#AdamW.step", step)
    trace = host.trace(tmp_path)
    assert kernels(trace, roles(trace, launches(trace)).optimizer) == ["update"]


def seconds(trace: Trace, rows: np.ndarray[Any, Any]) -> float:
    return float((trace.device.end - trace.device.start)[rows].sum() / 1e9)


def without_shapes(path: Path, folder: Path) -> Path:
    data = json.loads(gzip.decompress(path.read_bytes()))
    for event in data["traceEvents"]:
        for key in ("Input Dims", "Input type", "Concrete Inputs"):
            event.get("args", {}).pop(key, None)
    stripped = folder / "stripped.json"
    stripped.write_text(json.dumps(data))
    return stripped


def test_a_recording_without_shapes_has_the_same_attention(tmp_path: Path) -> None:
    path = OWN / "unfused-attention.json.gz"
    full, bare = (
        read_trace(file, detailed=True) for file in (path, without_shapes(path, tmp_path))
    )
    assert len(full.products) and not len(bare.products)
    assert attention(full).products.sum() == 2 * 8 * 6  # steps, layers, products
    assert (attention(full).all == attention(bare).all).all()
    assert (attention(full).products == attention(bare).products).all()


@pytest.mark.parametrize(
    "name", ["healthy-base", "healthy-compiled", "healthy-accumulated", "recompute-full"]
)
def test_our_sound_recordings_have_none_of_it(name: str) -> None:
    trace = read_trace(OWN / f"{name}.json.gz", detailed=True)
    assert not attention(trace).all.any()
    assert not evaluation_rows(trace, launches(trace)).any()
    assert not precision(trace).products.any() and not precision(trace).tf32.any()


@pytest.mark.parametrize("name", ["llama_none", "gpt2_fp32", "resnet_none", "llama-compiled_none"])
def test_foreign_recordings_have_only_what_was_done_wrong(name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(lzma.decompress((FOREIGN / f"{name}.json.xz").read_bytes()))
    trace = read_trace(path, detailed=True)
    found = launches(trace)
    role = roles(trace, found)
    assert not attention(trace).all.any() and not evaluation_rows(trace, found).any()
    full = seconds(trace, full_precision_rows(trace, found, role).products)
    assert full > 1.9 if name == "gpt2_fp32" else full < 1e-4  # tables of positions are in float32
    assert seconds(trace, single_tensor_optimizer_rows(trace, found, role)) < 1e-4
    if name == "resnet_none":  # Lightning runs the forward pass inside of the optimizer's step
        assert seconds(trace, role.optimizer) < 1e-3
