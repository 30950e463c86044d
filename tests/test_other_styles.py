"""Training code in styles of its own: functional gradients, optimizers written by hand, memory that
grows, loaders whose workers are ahead, a host that is nearly the limit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from computeflow.catalog import load_catalog
from computeflow.diagnosis import Diagnosis, diagnose
from computeflow.replay import replay_step
from computeflow.replay.edits import without_host_time
from computeflow.replay.engine import recorded
from computeflow.replay.profiler_cost import host_factor, without_profiler
from computeflow.telemetry.kineto.kineto_reader import read_trace
from computeflow.telemetry.trace_audit import audit
from computeflow.telemetry.traces.event_names import Call, call_of
from computeflow.telemetry.traces.launches import launches
from computeflow.telemetry.traces.own_updates import with_own_updates
from computeflow.telemetry.traces.rank_accounts import roles
from computeflow.telemetry.traces.step_graph import StepGraph
from kineto_maker import Maker
from test_kernel_roles import AUTOGRAD, MAIN, Host, kernels

CATALOG = load_catalog(())
ADAM = tuple(
    f"void at::native::vectorized_elementwise_kernel<4, at::native::{name}>"
    for name in ("lerp", "mul", "addcmul", "sqrt_kernel_cuda", "div", "add", "addcdiv")
)
AVERAGE = ADAM[:2]


def nested(host: Host, depth: int, shapes: dict[str, Any], inner: dict[str, Any]) -> None:
    """A product that is recorded at each level that torch.func adds, and once more in bf16."""
    if depth:
        host.op("aten::addmm", lambda: nested(host, depth - 1, shapes, inner), **shapes)
    else:
        host.op("aten::addmm", "nvjet_sm90_tst_192x192", **inner)


def test_a_nested_product_has_the_type_that_is_computed(tmp_path: Path) -> None:
    host = Host()
    dims = {"Input Dims": [[8], [64, 32], [32, 8], [], []]}
    kinds = [{"Input type": [kind] * 3 + ["Scalar"] * 2} for kind in ("float", "c10::BFloat16")]
    nested(host, 3, dims | kinds[0], dims | kinds[1])
    nested(host, 1, dims | kinds[0], dims | kinds[0])
    products = (trace := host.trace(tmp_path)).products
    assert [trace.names[kind] for kind in products.type] == ["c10::BFloat16", "float"]
    assert products.flops.tolist() == [2 * 64 * 32 * 8] * 2


def too_fast(folder: Path) -> Path:
    maker = Maker()
    start = maker.host
    for _ in range(120):
        maker.product(8192, 8192, 8192, 100.0)  # eleven times as fast as the device's peak
    maker.step(1, start)
    return maker.write(folder)


def test_flops_that_no_device_computes_leave_the_rest_of_an_audit(tmp_path: Path) -> None:
    ledger = audit([too_fast(tmp_path)], CATALOG, cache=False).job.ledger
    assert ledger.mfu is None and ledger.booked("compute") > 0.01
    assert "compute.kernel" not in ledger.accounts
    assert "are more than" in ledger.unavailable["compute.model"]


RECORDED = {"Sequence number": 9, "Fwd thread id": 0}


@pytest.mark.parametrize("is_functional", [False, True])
def test_a_backward_pass_that_autograd_records_is_no_recomputation(
    is_functional: bool, tmp_path: Path
) -> None:
    def inside() -> None:
        host.op("aten::silu", "silu", **RECORDED)
        host.op("aten::silu_backward", "back", **(RECORDED if is_functional else {}))

    host = Host()
    host.linear()
    host.thread = AUTOGRAD
    host.node("SiluBackward0", inside)
    trace = host.trace(tmp_path)
    again = kernels(trace, roles(trace, launches(trace)).recompute)
    assert again == ([] if is_functional else ["silu"])


def updated(host: Host, each: tuple[str, ...], tensors: int = 6) -> None:
    """One step whose gradients are accumulated, and then so many kernels for each tensor."""
    host.training_pass()
    host.thread = AUTOGRAD
    for _ in range(tensors):
        host.node("torch::autograd::AccumulateGrad", lambda: host.op("aten::add_", "accumulate"))
    host.thread, host.recorded = MAIN, False
    for _ in range(tensors):
        for name in each:
            host.op("aten::any", name)
    host.recorded = True


@pytest.mark.parametrize(
    ("each", "mark", "are_found"),
    [
        (ADAM, "", True),
        (ADAM, "clip_grad_norm_", True),
        (ADAM, "Optimizer.step#SGD.step", False),
        (AVERAGE, "", False),
        (("multi_tensor_apply_kernel<>",) * 7, "", False),
        (("void at::native::vectorized_elementwise_kernel<4, FillFunctor<float>>",) * 7, "", False),
    ],
)
def test_an_optimizer_written_by_hand_is_known_by_its_kernels(
    each: tuple[str, ...], mark: str, are_found: bool, tmp_path: Path
) -> None:
    host = Host()
    for _ in range(2):
        updated(host, each)
        if mark:
            host.marked(mark, lambda: host.op("aten::other", "other"))
    trace = host.trace(tmp_path)
    found = launches(trace)
    role = with_own_updates(trace, found, roles(trace, found))
    own = [name for name in kernels(trace, role.optimizer) if name != "other"]
    assert own == (list(each) * 12 if are_found else [])


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("cudaMalloc", Call.ALLOCATE),
        ("hipMalloc", Call.ALLOCATE),
        ("cuMemMap", Call.ALLOCATE),
        ("cudaFree", Call.FREE),
        ("cuMemUnmap", Call.FREE),
        ("cudaMemcpyAsync", Call.COPY),
    ],
)
def test_taking_memory_is_told_from_giving_it_back(name: str, call: Call) -> None:
    assert call_of(name) is call


def allocating(folder: Path, names: tuple[str, ...]) -> Path:
    maker = Maker()
    for number in range(3):
        start = maker.host
        for _ in range(60):
            for name in names:
                maker.span("cuda_runtime", name, maker.host, 100.0, correlation=0)
                maker.host += 101.0
            maker.host += 12.0
            maker.kernel("work", 20.0)
        maker.step(number, start)
    return written(maker, folder)


def written(maker: Maker, folder: Path) -> Path:
    """Write it with launches as long as they are while recorded."""
    for event in maker.events:
        if event["name"] == "cudaLaunchKernel":
            event["ts"], event["dur"] = event["ts"] - 6.0, 7.0
    return maker.write(folder)


def graph_of(path: Path) -> StepGraph:
    graph = audit([path], CATALOG, cache=False).ranks[0].graph
    assert graph is not None
    return graph


def diagnosed(path: Path, step_seconds: float | None = None) -> Diagnosis:
    return diagnose(audit([path], CATALOG, cache=False), CATALOG, step_seconds=step_seconds)


def test_memory_that_only_grows_is_no_pressure_and_not_in_the_steady_step(tmp_path: Path) -> None:
    path = allocating(tmp_path, ("cudaMalloc",))
    assert "memory-pressure" not in [finding.rule for finding in diagnosed(path).findings]
    step = replay_step(graph_of(path))
    assert step.recorded_seconds > 0.006 and step.seconds.middle < 0.003
    path = allocating(tmp_path, ("cudaMalloc", "cudaFree"))
    assert diagnosed(path).findings[0].rule == "memory-pressure"
    assert replay_step(graph_of(path)).seconds.middle > 0.01


def test_a_long_call_is_the_drivers_work_and_not_the_profilers(tmp_path: Path) -> None:
    graph = graph_of(allocating(tmp_path, ("cudaMalloc", "cudaFree")))
    now = without_profiler(graph, recorded(graph), 0.5)
    freeing = graph.line.call == Call.FREE
    assert (now.cost[freeing] > 0.85 * recorded(graph).cost[freeing]).all()
    launching = graph.line.call == Call.LAUNCH
    assert now.cost[launching] == pytest.approx(0.5 * recorded(graph).cost[launching])


def work(folder: Path, kernel: float, host: float, loader: str = "") -> Path:
    """Steps of 200 launches: so long each kernel, so long the host before each, in microseconds."""
    maker = Maker()
    for number in range(3):
        start = maker.host
        if loader:
            maker.span("user_annotation", loader, maker.host, 20.0)
            maker.host += 21.0
        for _ in range(200):
            maker.span("cpu_op", "aten::add", maker.host, host - 8.0)
            maker.host += host
            maker.kernel("work", kernel)
        maker.step(number, start)
    return written(maker, folder)


def test_a_step_is_launch_bound_where_its_host_decides(tmp_path: Path) -> None:
    assert [f.rule for f in diagnosed(work(tmp_path, 5.0, 50.0)).findings] == ["launch-bound"]
    path = work(tmp_path, 26.0, 50.0)  # its device has hardly less to do
    step = replay_step(graph_of(path))
    assert step.ends[1] > 1.05 * step.ends[0]
    assert not diagnosed(path).findings


LOADER = "enumerate(DataLoader)#_{}DataLoaderIter.__next__"


def test_waits_for_workers_may_lie_outside_of_the_window(tmp_path: Path) -> None:
    said = "workers of the data loader had batches ready"
    path = work(tmp_path, 5.0, 50.0, LOADER.format("MultiProcessing"))
    assert said in " ".join(diagnosed(path).notes)
    assert said not in " ".join(diagnosed(path, step_seconds=0.001).notes)
    path = work(tmp_path, 5.0, 50.0, LOADER.format("SingleProcess"))
    assert said not in " ".join(diagnosed(path).notes)


def test_a_measured_step_does_not_spread_waits_for_workers_over_the_host(tmp_path: Path) -> None:
    graph = graph_of(work(tmp_path, 5.0, 50.0, LOADER.format("MultiProcessing")))
    step = replay_step(graph, measured=10 * graph.window / graph.steps / 1e9)
    assert step.factor.high == pytest.approx(host_factor(graph).high, rel=0.01)
    graph = graph_of(work(tmp_path, 5.0, 50.0, LOADER.format("SingleProcess")))
    assert replay_step(graph, measured=1.0).factor.high == pytest.approx(1.0, rel=0.01)


def stalled(folder: Path, names: list[tuple[str, str]]) -> Path:
    """Steps with one stall of 5 ms each at the same launch, between two operators of these names."""
    maker = Maker()
    for number, (before, after) in enumerate(names):
        start = maker.host
        for launch in range(60):
            if launch == 30:
                maker.span("cpu_op", before, maker.host, 1.0)
                maker.host += 5_000.0
                maker.span("cpu_op", after, maker.host, 1.0)
            maker.host += 8.0
            maker.kernel("work", 20.0)
        maker.step(number, start)
    return maker.write(folder)


NODE = "autograd::engine::evaluate_function: {}Backward0"


@pytest.mark.parametrize(
    ("names", "is_regular"),
    [
        ([("aten::a", "aten::b")] * 3, [True] * 3),
        ([("aten::a", "aten::b")] * 2 + [("aten::c", "aten::d")], [True, True, False]),
        ([("aten::a", "aten::b"), ("aten::c", "aten::d"), ("aten::e", "aten::f")], [False] * 3),
        ([("aten::mul", NODE.format("Mul"))] * 2 + [("aten::c", "aten::d")], [False] * 3),
        ([("aten::mul", NODE.format("Mul"))] * 3, [True] * 3),
    ],
)
def test_a_stall_is_regular_between_the_same_operators(
    names: list[tuple[str, str]], is_regular: list[bool], tmp_path: Path
) -> None:
    stalls = graph_of(stalled(tmp_path, names)).stalls
    assert [stall.is_regular for stall in stalls] == is_regular


def test_host_time_that_is_removed_goes_whole_where_it_is_longer_than_recorded(
    tmp_path: Path,
) -> None:
    graph = graph_of(stalled(tmp_path, [("aten::a", "aten::b")] * 3))
    longer = without_profiler(graph, recorded(graph), 1.0, 1.0, 1.2)
    left = without_host_time(graph.line.free.astype(np.float64))(graph, longer).gap
    stall = graph.line.free > 0
    assert longer.gap[stall].min() > 5.9e6 and left[stall].max() < 0.1e6


def test_own_updates_are_the_optimizers_in_the_ledger(tmp_path: Path) -> None:
    host = Host()
    start = host.maker.host
    updated(host, ADAM)
    host.maker.step(1, start)
    path = tmp_path / "rank_0.json"
    path.write_text(json.dumps(host.maker.data()))
    assert audit([path], CATALOG, cache=False).job.ledger.booked("optimizer") > 0
    assert len(read_trace(path).device)
