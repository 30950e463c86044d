"""Profiles of JAX: planes like a GPU's, a TPU's and a CPU's, with sums made by hand; a recorded one."""

from __future__ import annotations

import gzip
import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from computeflow.catalog import load_catalog
from computeflow.errors import InputError, UnavailableError
from computeflow.telemetry.lines import head_of
from computeflow.telemetry.observed import Asked, Observed
from computeflow.telemetry.xplane import reader
from computeflow.telemetry.xplane.facts import XPlaneDevice
from computeflow.telemetry.xplane.source import XPlaneSource, observe_planes
from computeflow.views.observed.xplane import tables

RECORDED = Path(__file__).parent / "data" / "xplane" / "cpu_mlp.xplane.pb.gz"
PATH = Path("run/host.xplane.pb")
ASKED = Asked(catalog=load_catalog())
US = 1000


@dataclass
class Event:
    name: str
    start_ns: float
    duration_ns: float
    stats: list[tuple[str, Any]] = field(default_factory=list)


@dataclass
class Line:
    name: str
    events: list[Event]


@dataclass
class Plane:
    name: str
    lines: list[Line]
    stats: list[tuple[str, Any]] = field(default_factory=list)


def event(name: str, start: float, length: float, **stats: Any) -> Event:
    """Times in microseconds."""
    return Event(name, start * US, length * US, list(stats.items()))


def only(observed: Observed) -> XPlaneDevice:
    device: XPlaneDevice
    (device,) = observed.facts.devices
    assert sum(device.accounts.values()) == pytest.approx(device.seconds, rel=1e-9)
    return device


def microseconds(device: XPlaneDevice) -> dict[str, float]:
    return {name: round(value * 1e6, 3) for name, value in device.accounts.items() if value > 1e-12}


def gpu() -> list[Plane]:
    """Two steps of 100: 40 of a product, 30 of a reduction of which 10 are under another product."""
    device: list[Event] = []
    comm: list[Event] = []
    calls: list[Event] = []
    steps: list[Event] = []
    for step in range(2):
        at = 1000 + 100 * step
        steps.append(event("train", at, 100, step_num=step, _r=1))
        for order, (into, name, begun, length) in enumerate([
            (device, "gemm_fusion_dot", 10, 40), (comm, "ncclDevKernel_AllReduce_Sum_f32", 50, 30),
            (device, "loop_add_fusion", 50, 10), (device, "MemcpyD2H", 90, 10),
        ]):  # fmt: skip
            number = 10 * step + order + 1
            into.append(event(name, at + begun, length, correlation_id=number))
            calls.append(event("cuLaunchKernelEx", at + order, 1, correlation_id=number))
    return [
        Plane("/host:CPU", [Line("python", [*steps, *calls])]),
        Plane("/device:GPU:0", [
            Line("Stream #13(Compute)", device), Line("Stream #20(NCCL)", comm),
            Line("XLA Ops", [event("all of it again", 1000, 200)]), Line("Novel", []),
        ]),
        Plane("/device:GPU:1", []),
    ]  # fmt: skip


def test_a_gpu_s_streams_become_a_ledger_that_closes() -> None:
    observed = observe_planes(PATH, gpu())
    device = only(observed)
    assert device.steps == (0, 1)
    assert device.comm_seconds == pytest.approx(60e-6)
    assert device.comm_hidden_seconds == pytest.approx(20e-6)
    found = microseconds(device)
    # the first step's edge on the device is its host's: 10 before the product, 10 before the copy
    assert found["compute"] == pytest.approx(100)
    assert found["comm"] == pytest.approx(40)
    assert found["copy"] == pytest.approx(20)
    assert device.seconds == pytest.approx(200e-6)
    assert any("/device:GPU:1: nothing ran" in text for text in observed.left_out)
    assert any("not understood: Novel" in text for text in observed.left_out)
    assert "StepTraceAnnotation" in device.steps_from


def test_the_same_from_the_device_s_own_line_of_steps() -> None:
    planes = gpu()
    planes[0].lines[0].events = [e for e in planes[0].lines[0].events if e.name != "train"]
    planes[1].lines.append(Line("Steps", [event("7", 1010, 90), event("8", 1110, 90)]))
    device = only(observe_planes(PATH, planes))
    assert device.steps == (7, 8)
    assert microseconds(device)["compute"] == pytest.approx(100)
    assert "own line" in device.steps_from


def tpu(number: int = 0) -> Plane:
    """A loop that holds a convolution and a wait for a reduction; 20 of 100 nothing runs."""
    ops, beside, steps = [], [], []
    for step in range(2):
        at = 5000 + 100 * step
        steps.append(event(str(step + 3), at, 100))
        ops += [
            event("%while.1 = (s32[]) while(...)", at, 80),
            event("%fusion.7 = bf16[8,8] fusion(...)", at, 50, hlo_category="convolution fusion",
                  model_flops=4_000_000),
            event("%fusion.7.remat = bf16[8,8] fusion(...)", at + 50, 10, model_flops=1_000_000),
            event("%all-reduce-done.2 = f32[8] all-reduce-done(...)", at + 60, 20,
                  hlo_category="all-reduce"),
        ]  # fmt: skip
        beside += [
            event("all-reduce-start.2", at + 40, 40),
            event("copy-start.5", at + 80, 20),
        ]
    return Plane(
        f"/device:TPU:{number}",
        [Line("Steps", steps), Line("XLA Modules", [event("jit_train", 5000, 200)]),
         Line("XLA Ops", ops), Line("Async XLA Ops", beside)],
        [("device_type_string", "TPU v4"), ("peak_teraflops_per_second", 275.0)],
    )  # fmt: skip


def test_a_tpu_s_leaf_operations_become_a_ledger_and_its_loops_do_not() -> None:
    observed = observe_planes(PATH, [tpu(), Plane("/device:CUSTOM:Megascale Trace", [])])
    device = only(observed)
    assert device.steps == (3, 4)
    assert microseconds(device) == {"compute": 120, "comm": 40, "unexplained": 40}
    assert device.comm_seconds == pytest.approx(80e-6)
    assert device.comm_hidden_seconds == pytest.approx(40e-6)
    assert device.model_flops == 8_000_000
    assert (device.name, device.peak_flops) == ("TPU v4", 275e12)
    assert "while.1" not in {row.name for row in device.kernels}
    assert observed.ledger is not None
    assert "host" in observed.ledger.unavailable
    assert any("2 asynchronous copies" in text for text in observed.left_out)
    assert any("Megascale" in text for text in observed.left_out)
    assert tables(observed)[0].title == "Devices: TPU v4"


def test_several_devices_are_ranks_of_one_ledger() -> None:
    observed = observe_planes(PATH, [tpu(0), tpu(1)])
    assert [device.rank for device in observed.facts.devices] == [0, 1]
    assert observed.ledger is not None
    assert observed.ledger.gpus == 2
    assert sum(observed.ledger.accounts.values()) == pytest.approx(400e-6)


def test_on_a_cpu_alone_xla_s_operations_stand_for_kernels() -> None:
    def thunk(name: str, start: float, length: float, device: int = 0) -> Event:
        return event(name, start, length, hlo_op=name, device_ordinal=device)

    threads = [
        Line("tf_XLAEigen/1", [thunk("dot.1", 110, 40), event("end: dot.1", 150, 5)]),
        Line("tf_XLAEigen/2", [thunk("add.1", 130, 40), thunk("all-reduce.1", 170, 10),
                               thunk("dot.1", 120, 60, device=1)]),
        Line("python", [event("train", 100, 100, step_num=0), event("data_load", 100, 10)]),
    ]  # fmt: skip
    observed = observe_planes(PATH, [Plane("/host:CPU", threads)])
    first, second = observed.facts.devices
    assert microseconds(first) == {"compute": 60, "comm": 10, "input": 10, "host": 20}
    assert microseconds(second)["compute"] == pytest.approx(60)
    assert any("the host computed" in note for note in observed.notes)
    assert observed.ledger is not None


@pytest.mark.parametrize(
    "planes",
    [
        [],
        [Plane("/host:CPU", [Line("python", [event("train", 0, 5, step_num=1)])])],
        [Plane("/device:GPU:0", [Line("Stream #1", [Event("k", float("nan"), 1.0)])])],
        [Plane("/device:TPU:0", [Line("Sparse Core Ops", [event("op", 0, 5)])])],
    ],
)
def test_a_profile_without_work_is_one_line(planes: list[Plane]) -> None:
    with pytest.raises(InputError, match="no device's work"):
        observe_planes(PATH, planes)


def test_a_profile_is_known_by_ending_and_content(tmp_path: Path) -> None:
    source = XPlaneSource()
    assert source.recognises(RECORDED, head_of(RECORDED))
    assert not source.recognises(Path("host.pb"), head_of(RECORDED))
    assert not source.recognises(Path("a.xplane.pb"), b"\nsome text of /host:CPU")
    assert not source.recognises(Path("a.xplane.pb"), b"")


def test_large_and_broken_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = tmp_path / "cut.xplane.pb.gz"
    cut.write_bytes(RECORDED.read_bytes()[:2000])
    with pytest.raises(InputError, match="broken gzip"):
        XPlaneSource().observe([cut], ASKED)
    monkeypatch.setattr(reader, "MOST_BYTES", 1 << 10)
    with pytest.raises(InputError, match="record fewer steps"):
        XPlaneSource().observe([RECORDED], ASKED)


@pytest.mark.skipif(importlib.util.find_spec("jax") is not None, reason="jax is installed")
def test_without_jax_the_remedy_is_named() -> None:
    with pytest.raises(UnavailableError, match="pip install jax"):
        XPlaneSource().observe([RECORDED], ASKED)


def test_a_recorded_training_loop_is_read_whole(tmp_path: Path) -> None:
    """`benchmarks/record_xplane.py`: five steps of three layers on a CPU."""
    pytest.importorskip("jax")
    (observed,) = XPlaneSource().observe([RECORDED], ASKED)
    device = only(observed)
    assert device.steps == (0, 1, 2, 3, 4)
    assert device.platform == "cpu"
    assert device.busy_seconds == pytest.approx(device.accounts["compute"])
    assert all(row.count % 5 == 0 for row in device.kernels)
    assert tables(observed)
    broken = tmp_path / "broken.xplane.pb"
    broken.write_bytes(gzip.decompress(RECORDED.read_bytes())[:5000])
    with pytest.raises(InputError, match="not a whole profile"):
        XPlaneSource().observe([broken], ASKED)
