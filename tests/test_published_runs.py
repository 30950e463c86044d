"""Rows of tables of published runs: every one whose arithmetic is possible is read, and rightly."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from computeflow.catalog import load_catalog
from computeflow.catalog.parameters import count_parameters
from computeflow.cli import main
from computeflow.errors import InputError
from computeflow.prediction import find_stack, load_parameters, predict
from computeflow.prediction.memory import HEADROOM, memory
from computeflow.prediction.published_runs import MeasuredRun, case_of, read_cases, step_inputs_of
from computeflow.prediction.stack import STACKS
from computeflow.prediction.step import account_step
from computeflow.prediction.validation import validate

FACTS = load_catalog()
ROW = {
    "row_id": "1", "source": "us", "year": "2025", "kind": "pretrain", "model_name": "our-7b",
    "params_b": "6.74", "layers": "32", "hidden": "4096", "heads": "32", "kv_heads": "32",
    "ffn_hidden": "11008", "vocab": "32000", "seq_len": "4096", "gpu": "h100-sxm", "num_gpus": "64",
    "gpus_per_node": "8", "inter_node_link": "8x400 Gb/s per node", "tp": "1", "pp": "1",
    "dp": "64", "micro_batch": "1", "global_batch": "64", "precision": "bf16", "recompute": "none",
    "framework": "torchtitan", "d_step_time_s": "1.0",
}  # fmt: skip


def run(**cells: str) -> MeasuredRun:
    return case_of(ROW | cells, FACTS)


def seconds(**cells: str) -> float:
    return float(account_step(step_inputs_of([run(**cells)]), load_parameters()).seconds[0])


@pytest.mark.parametrize(
    ("framework", "year", "stack", "family"),
    [
        ("Megatron-Core dev (r0.12)", "2025", "megatron", "megatron"),
        ("Megatron-LM", "2021", "megatron-2021", "megatron"),
        ("Megatron-LM v3", "2023", "nemo-2023", "megatron"),
        ("NeMo 22.11", "2022", "nemo-2023", "megatron"),
        ("NeMo 2.1", "2025", "nemo", "megatron"),
        ("MindSpeed-LLM", "2025", "megatron", "megatron"),
        ("GPT-NeoX", "2022", "megatron-deepspeed", "megatron"),
        ("HF Trainer", "2025", "huggingface", "huggingface"),
        ("TRL SFTTrainer", "2025", "huggingface", "huggingface"),
        ("axolotl 0.8", "2025", "huggingface", "huggingface"),
        ("unsloth", "2025", "huggingface", "huggingface"),
        ("Accelerate 1.2", "2025", "accelerate", "huggingface"),
        ("Transformers + DeepSpeed 0.15", "2024", "deepspeed", "deepspeed"),
        ("Lightning 2.4", "2024", "lightning", "torch"),
        ("ColossalAI", "2024", "torch", "torch"),
        ("veScale", "2024", "torch", "torch"),
        ("plain PyTorch FSDP2", "2025", "torch", "torch"),
        ("PaxML", "2023", "jax", "xla"),
        ("Optimum-Habana", "2024", "gaudi", "gaudi"),
        ("AWS Neuron NxD", "2024", "neuron", "neuron"),
    ],
)
def test_a_framework_is_known_by_any_of_its_names(
    framework: str, year: str, stack: str, family: str
) -> None:
    found = run(framework=framework, year=year)
    assert (found.stack.name, found.stack.family) == (stack, family)
    assert "stack" not in found.missing
    assert found.framework == framework


def test_an_unknown_framework_is_plain_pytorch_and_missing() -> None:
    found = run(framework="house trainer 7")
    assert (found.stack.name, found.missing) == ("torch", ("stack",))


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        ("torch.compile", "kernels", "compiled"),
        ("compile=n", "kernels", "eager"),
        ("no compile", "kernels", "eager"),
        ("Liger kernels", "kernels", "fused"),
        ("optimizer fused in backward", "kernels", "eager"),
        ("FA3", "attention", "latest"),
        ("flash-attn 2", "attention", "flash2"),
        ("eager attention", "attention", "unfused"),
        ("async TP", "tp_overlap", True),
        ("no overlap", "dp_overlap", False),
        ("CUDA graphs", "graphs", "blocks"),
        ("seq parallel", "sequence_parallel", True),
        ("sequence_parallel=false", "sequence_parallel", False),
        ("DeepEP", "dispatcher", "deduplicating"),
    ],
)
def test_words_of_a_row_change_what_the_stack_can_do(flags: str, field: str, value: object) -> None:
    assert getattr(run(framework="own code", flags=flags).stack, field) == value


@pytest.mark.parametrize(
    ("framework", "year", "attention"),
    [
        ("HF Trainer", "2023", "unfused"),
        ("HF Trainer", "2024", "sdpa"),
        ("PyTorch 2.1", "2023", "flash1"),
        ("PyTorch 1.13", "2022", "unfused"),
    ],
)
def test_the_attention_of_plain_pytorch_is_that_of_its_year(
    framework: str, year: str, attention: str
) -> None:
    assert run(framework=framework, year=year).stack.attention == attention


def test_every_stack_has_a_family_and_can_be_asked_for() -> None:
    for name in ("huggingface", "accelerate", "lightning", "deepspeed", "torch", "gaudi"):
        assert find_stack(name).family
    assert len({stack.family for stack in STACKS.values()}) > 6


def test_the_python_of_hugging_face_shows_where_kernels_are_short() -> None:
    """Measured on an H200 with a Llama of 1B: 0.091 s at 1 x 128 tokens, 0.145 s at 4 x 2048."""
    short = {
        "gpu": "h200",
        "num_gpus": "1",
        "dp": "1",
        "model_name": "llama-3.2-1b",
        "year": "2026",
        "layers": "",
        "hidden": "",
        "heads": "",
        "vocab": "",
        "inter_node_link": "",
        "framework": "HF Trainer",
    }
    few = seconds(**short, micro_batch="1", global_batch="1", seq_len="128")
    many = seconds(**short, micro_batch="4", global_batch="4", seq_len="2048")
    assert few == pytest.approx(0.091, rel=0.1)
    assert many == pytest.approx(0.145, rel=0.1)


def test_a_micro_batch_that_is_not_stated_is_the_largest_that_fits() -> None:
    found = run(micro_batch="", global_batch="4096", zero_fsdp="fsdp", recompute="full")
    assert found.missing == ("micro_batch",)
    used = memory(step_inputs_of([found])).bytes[0]
    assert used <= HEADROOM * 80e9
    twice = run(
        micro_batch=str(2 * found.layout.micro_batch),
        global_batch="4096",
        zero_fsdp="fsdp",
        recompute="full",
    )
    assert memory(step_inputs_of([twice])).bytes[0] > HEADROOM * 80e9


def test_accumulation_and_batch_give_the_micro_batch_and_the_reverse() -> None:
    stated = run(micro_batch="", grad_accum="4", global_batch="512")
    assert (stated.layout.micro_batch, stated.missing) == (2, ())
    assert run(global_batch="", micro_batch="2", grad_accum="4").job.global_batch == 512
    timed = run(global_batch="", tokens_per_sec_per_gpu="8192", d_step_time_s="2.0")
    assert timed.job.global_batch == 256


def test_a_pipeline_whose_micro_batch_is_not_stated_is_filled_well() -> None:
    piped = {"pp": "4", "dp": "16", "micro_batch": "", "recompute": "full"}
    assert run(**piped, global_batch="512").layout.micro_batch == 2
    assert run(**piped, global_batch="128").layout.micro_batch == 1


def test_tokens_per_second_are_a_step_time() -> None:
    found = run(d_step_time_s="", tokens_per_sec_per_gpu="8192")
    assert found.measured_seconds == pytest.approx(0.5)
    with pytest.raises(InputError, match="not stated: d_step_time_s"):
        run(d_step_time_s="")


def test_a_layout_that_is_not_stated_is_the_least_cut_that_fits() -> None:
    large = {"model_name": "llama-3-70b", "layers": "", "hidden": "", "heads": "", "vocab": ""}
    found = run(**large, tp="", pp="", dp="", micro_batch="", framework="NeMo", recompute="")
    assert found.layout.tp * found.layout.pp > 1
    assert {"layout", "micro_batch", "recompute"} <= set(found.missing)


@pytest.mark.parametrize(
    ("kind", "flags", "training", "rank", "targets"),
    [
        ("lora", "LoRA r=64 on all linear", "lora", 64, "all"),
        ("lora", "lora rank 8 on attention", "lora", 8, "attention"),
        ("sft", "QLoRA nf4 r16", "qlora", 16, "all"),
        ("sft", "full fine-tune", "full", 16, "all"),
        ("pretrain", "", "full", 16, "all"),
    ],
)
def test_low_rank_training_is_read_with_its_rank(
    kind: str, flags: str, training: str, rank: int, targets: str
) -> None:
    job = run(kind=kind, flags=flags).job
    assert (job.training, job.lora_rank, job.lora_targets) == (training, rank, targets)


def test_low_rank_updates_cost_two_thirds_and_less_memory() -> None:
    full, lora = run(kind="sft"), run(kind="lora", flags="r16 on attention")
    alone = {"num_gpus": "1", "dp": "1"}
    assert 0.6 < seconds(**alone, kind="lora") / seconds(**alone, kind="sft") < 0.95
    assert memory(step_inputs_of([lora])).bytes[0] < memory(step_inputs_of([full])).bytes[0]


def test_training_with_several_models_is_refused() -> None:
    with pytest.raises(InputError, match="several models"):
        run(kind="dpo")


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        ("adamw8bit", "optimizer", "adam8bit"),
        ("paged_adamw_8bit", "optimizer", "adam8bit"),
        ("distributed Muon", "optimizer", "muon"),
        ("SGD", "optimizer", "sgd"),
        ("chunked cross entropy", "loss_chunks", 8),
        ("loss_chunks=4", "loss_chunks", 4),
    ],
)
def test_optimizer_and_loss_are_read(flags: str, field: str, value: object) -> None:
    assert getattr(run(flags=flags).job, field) == value


@pytest.mark.parametrize(
    ("recompute", "flags", "expected"),
    [
        ("ac=full", "", "full"),
        ("op", "", "selective"),
        ("selective every 2", "", "selective"),
        ("True", "", "full"),
        ("off", "", "none"),
        ("", "gradient checkpointing", "full"),
        ("", "ac=selective", "selective"),
        ("full, 8 of 32 layers", "", "none"),
        ("full, 24 of 32 layers", "", "full"),
        ("save_qkv_proj", "", "selective"),
    ],
)
def test_words_for_recomputation(recompute: str, flags: str, expected: str) -> None:
    found = run(recompute=recompute, flags=flags)
    assert (found.layout.recompute, "recompute" in found.missing) == (expected, False)


@pytest.mark.parametrize(
    ("zero_fsdp", "flags", "sharding", "replicas"),
    [
        ("hsdp", "", "hsdp", 8),
        ("hybrid_shard", "", "hsdp", 8),
        ("hsdp, dp_replicate=4", "", "hsdp", 4),
        ("fsdp=16", "", "hsdp", 4),
        ("fsdp=16, ddp=4", "", "hsdp", 4),
        ("fsdp=64", "", "fsdp", 1),
        ("full_shard", "", "zero3", 1),
        ("shard_grad_op", "", "zero2", 1),
        ("zero1=16", "", "zero1", 4),
        ("zero1=-1", "", "zero1", 1),
        ("ZeRO-2", "", "zero2", 1),
        ("ZeRO stage 3", "", "zero3", 1),
        ("none", "distributed optimizer", "zero1", 1),
        ("zero0", "", "ddp", 1),
        ("ddp", "", "ddp", 1),
    ],
)
def test_words_for_sharding(zero_fsdp: str, flags: str, sharding: str, replicas: int) -> None:
    layout = run(zero_fsdp=zero_fsdp, flags=flags).layout
    assert (layout.sharding, layout.replicas) == (sharding, replicas)


def test_state_that_is_split_in_groups_takes_more_memory_than_split_over_all() -> None:
    small, large = (memory(step_inputs_of([run(zero_fsdp=f"zero1={n}")])) for n in (8, 64))
    assert small.by_owner["optimizer"][0] == pytest.approx(8 * large.by_owner["optimizer"][0])


@pytest.mark.parametrize(
    ("zero_fsdp", "flags", "offload"),
    [
        ("zero3", "fsdp_cpu_offload", "parameters"),
        ("zero2", "ZeRO-Offload of the optimizer", "optimizer"),
        ("zero3", "optimizer offload", "optimizer"),
        ("zero3", "nvme offload", "nvme"),
        ("zero3", "act_cpu_offload=False", "none"),
        ("zero3", "offload where needed", "none"),
        ("fsdp", "activation offload", "activations"),
    ],
)
def test_words_for_what_lies_on_the_host(zero_fsdp: str, flags: str, offload: str) -> None:
    assert run(zero_fsdp=zero_fsdp, flags=flags, recompute="full").layout.offload == offload


@pytest.mark.parametrize(
    ("cp", "flags", "ranks", "context"),
    [
        ("8", "ring attention", 8, "ring"),
        ("", "Ulysses sp=8", 8, "all-to-all"),
        ("", "ring=16", 16, "ring"),
    ],
)
def test_long_contexts_are_cut_by_the_flags_too(
    cp: str, flags: str, ranks: int, context: str
) -> None:
    found = run(
        cp=cp,
        flags=flags,
        seq_len="262144",
        zero_fsdp="zero3+cpu-offload",
        dp="",
        framework="Accelerate + DeepSpeed",
        recompute="full",
    )
    assert (found.layout.cp, found.layout.context) == (ranks, context)
    assert (found.layout.sharding, found.layout.offload) == ("zero3", "parameters")
    assert found.stack.attention == "sdpa"


@pytest.mark.parametrize(
    ("name", "proper"),
    [
        ("A800-SXM4-80GB", "a800-80-sxm"),
        ("GeForce RTX 3090", "rtx-3090"),
        ("Tesla V100-SXM2-16GB", "v100-16-sxm2"),
        ("Gaudi 2", "gaudi2"),
        ("Instinct MI300X", "mi300x"),
        ("v5litepod", "tpu-v5e"),
        ("H100-SXM5-80GB", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("H200-141GB", "h200-sxm"),
    ],
)
def test_devices_are_found_by_the_names_that_drivers_and_papers_use(name: str, proper: str) -> None:
    assert FACTS.accelerators[name].name == proper


def test_a_device_without_bf16_trains_in_fp16() -> None:
    old = {"gpu": "v100", "precision": "fp16", "framework": "PyTorch", "year": "2020"}
    assert seconds(**old) > 2 * seconds()
    with pytest.raises(InputError, match="precision of v100"):
        step_inputs_of([run(**old | {"precision": "bf16"})])


EXPERTS = {
    "model_name": "our-moe",
    "params_b": "47",
    "active_params_b": "13",
    "kv_heads": "8",
    "moe_experts": "8",
    "moe_topk": "2",
    "ep": "8",
}


def test_experts_that_the_catalog_does_not_have_are_built_from_the_counts() -> None:
    stated, counted = run(**EXPERTS, ffn_hidden="14336"), run(**EXPERTS, ffn_hidden="")
    for found in (stated, counted):
        assert found.missing == ("experts",)
        assert count_parameters(found.job.model).total == pytest.approx(47e9, rel=0.05)
        assert count_parameters(found.job.model).active == pytest.approx(13e9, rel=0.1)
    with pytest.raises(InputError, match="params_b and active_params_b"):
        run(**EXPERTS | {"active_params_b": "", "ffn_hidden": ""})


def test_a_count_of_parameters_tells_gated_from_plain_and_tied_from_not() -> None:
    small = {"layers": "12", "hidden": "768", "heads": "12", "kv_heads": "", "vocab": "50304"}
    plain = run(**small, ffn_hidden="3072", params_b="0.124").job.model
    assert (plain.tied, plain.blocks[0].dense.gated) == (True, False)  # type: ignore[union-attr]
    gated = run(**small, ffn_hidden="3072", params_b="0.191").job.model
    assert (gated.tied, gated.blocks[0].dense.gated) == (False, True)  # type: ignore[union-attr]


def test_a_width_that_is_not_stated_is_the_usual_one_or_the_counted_one() -> None:
    usual = run(ffn_hidden="", params_b="7")
    assert usual.missing == ("width",)
    assert usual.job.model.blocks[0].dense.width == 11008  # type: ignore[union-attr]
    wide = run(ffn_hidden="", params_b="9.0").job.model
    assert count_parameters(wide).total == pytest.approx(9.0e9, rel=0.01)


def test_shapes_that_are_not_stated_come_from_the_catalog() -> None:
    blank = dict.fromkeys(("layers", "hidden", "heads", "vocab", "ffn_hidden", "kv_heads"), "")
    assert run(**blank, model_name="qwen3-8b").job.model.name == "qwen3-8b"
    with pytest.raises(InputError, match="not in the catalog"):
        run(**blank)


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("int8 (AQT)", "int8"),
        ("float8 rowwise scaling", "fp8-rowwise"),
        ("FP8 tensorwise", "fp8"),
        ("MXFP8", "mxfp8"),
        ("fp8 128x128 blocks", "fp8-block"),
        ("tf32", "tf32"),
        ("fp16/bf16", "bf16"),
        ("", "bf16"),
    ],
)
def test_words_for_precision(text: str, precision: str) -> None:
    assert run(precision=text).job.precision == precision


def test_mixed_precision_of_plain_pytorch_keeps_fp32_weights() -> None:
    mixed, pure = (run(framework="Lightning", precision=f"bf16-{how}") for how in ("mixed", "true"))
    assert (mixed.stack.param_bytes, mixed.stack.state_bytes) == (4.0, 8.0)
    assert (pure.stack.param_bytes, pure.stack.state_bytes) == (2.0, 4.0)


@pytest.mark.parametrize(
    ("flags", "schedule", "vp"),
    [
        ("schedule=zero-bubble", "zero-bubble", 1),
        ("zbv", "zbv", 1),
        ("interleaved 1F1B", "1f1b", 2),
        ("v-half", "1f1b", 4),
    ],
)
def test_words_for_pipeline_schedules(flags: str, schedule: str, vp: int) -> None:
    stated = {"vp": "" if "interleaved" in flags else "4"}
    found = run(pp="4", dp="16", global_batch="512", flags=flags, **stated)
    assert (found.layout.schedule, found.layout.vp) == (schedule, vp)
    assert ("schedule" in found.missing) == (flags == "v-half")


@pytest.mark.parametrize(
    ("link", "gigabytes"),
    [
        ("4x200 Gb/s per node", 12.5),
        ("400 Gb/s per GPU", 50.0),
        ("Storage: 2x 100Gb/s, Compute: 8x ConnectX-7 400Gb/s", 50.0),
        ("8x100 Gb/s HDR per VM", 12.5),
    ],
)
def test_words_for_the_network(link: str, gigabytes: float) -> None:
    found = run(inter_node_link=link)
    assert found.cluster.tiers[-1].bytes_per_second == pytest.approx(gigabytes * 1e9)
    assert "network" not in found.missing


def test_flash_attention_2_gains_little_on_blackwell() -> None:
    kinds = ("FA2", "FA4", "SDPA")
    old, new, own = (seconds(gpu="b200", seq_len="65536", flags=kind) for kind in kinds)
    assert old > 1.5 * new
    assert own == new
    old, own = (seconds(seq_len="65536", flags=kind) for kind in ("FA2", "SDPA"))
    assert own == old


def test_a_packed_table_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.csv.gz"
    path.write_bytes(gzip.compress(f"{','.join(ROW)}\n{','.join(ROW.values())}\n".encode()))
    with pytest.raises(SystemExit) as ended:
        main(["validate", "--cases", str(path)])
    assert not ended.value.code
    assert "us" in capsys.readouterr().out


def test_a_row_of_words_without_meaning_is_predicted_all_the_same() -> None:
    text = {"flags": "???", "zero_fsdp": "~", "framework": "-", "precision": "x", "recompute": "?"}
    row = ROW | text
    cases, skipped = read_cases(f"{','.join(row)}\n{','.join(row.values())}\n", FACTS)
    assert not skipped
    assert np.isfinite(validate(cases, {}, load_parameters()).summary.mape)


def test_a_stack_can_be_asked_for_in_a_prediction() -> None:
    case = run()
    slow = predict(case.job, case.cluster, case.layout, find_stack("huggingface")).step_seconds
    assert slow > predict(case.job, case.cluster, case.layout, find_stack("lab")).step_seconds
