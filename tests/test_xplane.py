"""Profiles of JAX: planes like a GPU's, a TPU's and a CPU's, with sums made by hand; a recorded one."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from computeflow.catalog import load_catalog
from computeflow.cli import run
from computeflow.errors import InputError
from computeflow.telemetry.opening import head_of
from computeflow.telemetry.trace_audit import audit
from computeflow.telemetry.trace_formats import read_rank
from computeflow.telemetry.traces.job_ledgers import TracedJob, job_ledger
from computeflow.telemetry.traces.job_ranks import one_job
from computeflow.telemetry.traces.rank import measure_trace
from computeflow.telemetry.traces.rank_measurements import (
    FileMeasurement,
    RankMeasurement,
    TraceOptions,
)
from computeflow.telemetry.traces.trace import Trace
from computeflow.telemetry.xplane import protobuf
from computeflow.telemetry.xplane.planes import Plane, PlaneEvent, PlaneLine
from computeflow.telemetry.xplane.xplane_reader import read_planes, recognises
from computeflow.views.audits import audit_tables, devices_table

RECORDED = Path(__file__).parent / "data" / "xplane" / "cpu_mlp.xplane.pb.gz"
PATH = Path("run/host.xplane.pb")
FACTS = load_catalog()
US = 1000


def event(name: str, start: float, length: float, **stats: Any) -> PlaneEvent:
    """An event; times in microseconds."""
    return PlaneEvent(name, start * US, length * US, stats)


def line(name: str, events: list[PlaneEvent]) -> PlaneLine:
    return PlaneLine(name=name, events=events)


def plane(name: str, lines: list[PlaneLine], **stats: Any) -> Plane:
    return Plane(name=name, lines=lines, stats=stats)


def observe(planes: list[Plane]) -> TracedJob:
    """Observe a file as `audit` does."""
    traces = [trace for trace in read_planes(PATH, planes) if isinstance(trace, Trace)]
    ranks = tuple(measure_trace(trace, TraceOptions()) for trace in traces)
    job = one_job([FileMeasurement(ranks=ranks)])
    left_out = dict.fromkeys(text for rank in job.ranks for text in rank.left_out)
    notes = dict.fromkeys(text for rank in job.ranks for text in rank.notes)
    return TracedJob(
        job=job_ledger(job.ranks, None),
        ranks=job.ranks,
        accelerator=None,
        left_out=tuple(left_out),
        notes=(*notes, *job.notes),
    )


def only(observed: TracedJob) -> RankMeasurement:
    (rank,) = observed.ranks
    ledger = observed.job.ledger
    assert sum(ledger.accounts.values()) == pytest.approx(ledger.gpu_seconds, rel=1e-9)
    return rank


def microseconds(observed: TracedJob, rank: int = 0) -> dict[str, float]:
    accounts = observed.job.ranks[rank].ledger.accounts
    return {name: round(value * 1e6, 3) for name, value in accounts.items() if value > 1e-12}


def gpu(*, annotated: bool = True, own_steps: bool = False, runs: bool = False) -> list[Plane]:
    """A GPU with two steps of 100: 40 of a product, 30 of a reduction, 10 of them overlapped."""
    device: list[PlaneEvent] = []
    comm: list[PlaneEvent] = []
    calls: list[PlaneEvent] = []
    steps: list[PlaneEvent] = []
    for step in range(2):
        at = 1000 + 100 * step
        if annotated:
            steps.append(event("train", at, 100, step_num=step))
        if runs:  # a call is recorded again inside of itself
            steps += [event("PjitFunction(train)", at + inside, 8) for inside in (0, 0.5)]
        for order, (into, name, begun, length) in enumerate(
            [
                (device, "gemm_fusion_dot", 10, 40),
                (comm, "ncclDevKernel_AllReduce_Sum_f32", 50, 30),
                (device, "loop_add_fusion", 50, 10),
                (device, "MemcpyD2H", 90, 10),
            ]
        ):
            number = 10 * step + order + 1
            into.append(
                event(name, at + begun, length, correlation_id=number, hlo_module="jit_train")
            )
            calls.append(event("cuLaunchKernelEx", at + order, 1, correlation_id=number))
    return [
        plane("/host:CPU", [line("python", [*steps, *calls])]),
        plane(
            "/device:GPU:0",
            [
                line("Stream #13(Compute)", device),
                line("Stream #20(NCCL)", comm),
                line("XLA Ops", [event("all of it again", 1000, 200)]),
                line("Novel", []),
                *(
                    [line("Steps", [event("7", 1010, 90), event("8", 1110, 90)])]
                    if own_steps
                    else []
                ),
            ],
        ),
        plane("/device:GPU:1", []),
    ]


def test_a_gpu_s_streams_become_a_ledger_that_closes() -> None:
    observed = observe(gpu())
    device = only(observed)
    assert device.steps == (0, 1)
    assert device.activity.comm_seconds == pytest.approx(60e-6)
    assert device.activity.comm_hidden_seconds == pytest.approx(20e-6)
    found = microseconds(observed)
    # the first step's edge on the device is its host's: 10 before the product, 10 before the copy
    assert found["compute"] == pytest.approx(100)
    assert found["comm"] == pytest.approx(40)
    assert found["copy"] == pytest.approx(20)
    assert observed.job.ledger.gpu_seconds == pytest.approx(200e-6)
    assert any("/device:GPU:1: nothing ran" in text for text in observed.left_out)
    assert any("unknown lines: Novel" in text for text in observed.left_out)
    assert "StepTraceAnnotation" in device.origin.steps_from


def test_the_same_from_the_device_s_own_line_of_steps() -> None:
    observed = observe(gpu(annotated=False, own_steps=True))
    device = only(observed)
    assert device.steps == (7, 8)
    assert microseconds(observed)["compute"] == pytest.approx(100)
    assert "own line" in device.origin.steps_from


def tpu(number: int = 0) -> Plane:
    """A TPU with a loop around a convolution and a wait for a reduction; it is idle for 20 of 100."""
    ops, beside, steps = [], [], []
    for step in range(2):
        at = 5000 + 100 * step
        steps.append(event(str(step + 3), at, 100))
        ops += [
            event("%while.1 = (s32[]) while(...)", at, 80),
            event(
                "%fusion.7 = bf16[8,8] fusion(...)",
                at,
                50,
                hlo_category="convolution fusion",
                model_flops=4_000_000,
            ),
            event("%fusion.7.remat = bf16[8,8] fusion(...)", at + 50, 10, model_flops=1_000_000),
            event(
                "%all-reduce-done.2 = f32[8] all-reduce-done(...)",
                at + 60,
                20,
                hlo_category="all-reduce",
            ),
        ]
        beside += [
            event("all-reduce-start.2", at + 40, 40),
            event("copy-start.5", at + 80, 20),
        ]
    return plane(
        f"/device:TPU:{number}",
        [
            line("Steps", steps),
            line("XLA Modules", [event("jit_train", 5000, 200)]),
            line("XLA Ops", ops),
            line("Async XLA Ops", beside),
        ],
        device_type_string="TPU v4",
        peak_teraflops_per_second=275.0,
    )


def test_a_tpu_s_leaf_operations_become_a_ledger_and_its_loops_do_not() -> None:
    observed = observe([tpu(), plane("/device:CUSTOM:Megascale Trace", [])])
    device = only(observed)
    assert device.steps == (3, 4)
    assert microseconds(observed) == {"compute": 120, "comm": 40, "unexplained": 40}
    assert device.activity.comm_seconds == pytest.approx(80e-6)
    assert device.activity.comm_hidden_seconds == pytest.approx(40e-6)
    assert device.flops == 8_000_000
    assert (device.device, device.origin.peak_flops) == ("TPU v4", 275e12)
    assert "while.1" not in {row.name for row in device.kernels}
    assert "host" in observed.job.ledger.unavailable
    assert any("2 asynchronous copies" in text for text in observed.left_out)
    assert any("Megascale" in text for text in observed.left_out)
    assert devices_table(observed).title == "Devices: TPU v4"


def test_flops_that_a_profile_states_give_mfu() -> None:
    ranks = observe([tpu()]).ranks
    ledger = job_ledger(ranks, FACTS.accelerators["tpu-v5p"]).ledger
    assert ledger.peak is not None and ledger.peak.precision == "bf16"
    assert ledger.mfu == pytest.approx(8_000_000 / ledger.peak.flops / 200e-6)


def test_runs_of_the_main_module_are_steps_where_none_are_annotated() -> None:
    observed = observe(gpu(annotated=False, runs=True))
    device = only(observed)
    assert device.steps == (0, 1)
    assert "runs of 'jit_train'" in device.origin.steps_from
    assert microseconds(observed)["compute"] == pytest.approx(100)


def test_several_devices_are_ranks_of_one_ledger() -> None:
    observed = observe([tpu(0), tpu(1)])
    assert [rank.rank for rank in observed.ranks] == [0, 1]
    ledger = observed.job.ledger
    assert ledger.gpus == 2
    assert sum(ledger.accounts.values()) == pytest.approx(400e-6)


def test_on_a_cpu_alone_xla_s_operations_stand_for_kernels() -> None:
    def thunk(name: str, start: float, length: float, device: int = 0) -> PlaneEvent:
        return event(name, start, length, hlo_op=name, device_ordinal=device)

    threads = [
        line("tf_XLAEigen/1", [thunk("dot.1", 110, 40), event("end: dot.1", 150, 5)]),
        line(
            "tf_XLAEigen/2",
            [
                thunk("add.1", 130, 40),
                thunk("all-reduce.1", 170, 10),
                thunk("dot.1", 120, 60, device=1),
            ],
        ),
        line("python", [event("train", 100, 100, step_num=0), event("data_load", 100, 10)]),
    ]
    observed = observe([plane("/host:CPU", threads)])
    assert microseconds(observed) == {"compute": 60, "comm": 10, "input": 10, "host": 20}
    assert microseconds(observed, 1)["compute"] == pytest.approx(60)
    assert any("the host computed" in note for note in observed.notes)


@pytest.mark.parametrize(
    "planes",
    [
        [],
        [plane("/host:CPU", [line("python", [event("train", 0, 5, step_num=1)])])],
        [plane("/device:GPU:0", [line("Stream #1", [PlaneEvent("k", float("nan"), 1.0, {})])])],
        [plane("/device:TPU:0", [line("Sparse Core Ops", [event("op", 0, 5)])])],
    ],
)
def test_a_profile_without_work_is_one_line(planes: list[Plane]) -> None:
    with pytest.raises(InputError, match="no work of a device"):
        observe(planes)


def test_a_profile_is_known_by_ending_and_content(tmp_path: Path) -> None:
    assert recognises(RECORDED, head_of(RECORDED))
    assert not recognises(Path("host.pb"), head_of(RECORDED))
    assert not recognises(Path("a.xplane.pb"), b"\nsome text of /host:CPU")
    assert not recognises(Path("a.xplane.pb"), b"")
    assert not recognises(Path("a.json"), b'{"traceEvents": [')


def test_large_and_broken_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = tmp_path / "cut.xplane.pb.gz"
    cut.write_bytes(RECORDED.read_bytes()[:2000])
    with pytest.raises(InputError, match="ends in the middle"):
        audit([cut], FACTS, cache=False)
    monkeypatch.setattr(protobuf, "XPLANE_BYTES", 1 << 10)
    with pytest.raises(InputError, match="record fewer steps"):
        audit([RECORDED], FACTS, cache=False)
    monkeypatch.undo()
    monkeypatch.setattr(protobuf, "XPLANE_LINE_BYTES", 100)
    with pytest.raises(InputError, match="a line of more than"):
        audit([RECORDED], FACTS, cache=False)


def test_without_protobuf_the_remedy_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['google.protobuf'] = None\n"
        "from computeflow.cli import run\n"
        f"sys.exit(run(['audit', {str(RECORDED)!r}, '--no-cache']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'computeflow[xplane]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_recorded_training_loop_is_read_whole(tmp_path: Path) -> None:
    """`benchmarks/record_xplane.py`: five steps of three layers on a CPU."""
    observed = audit([RECORDED], FACTS, cache=False)
    device = only(observed)
    assert device.steps == (0, 1, 2, 3, 4)
    assert device.origin.platform == "cpu"
    assert device.activity.busy_seconds == pytest.approx(device.accounts["compute"])
    assert all(row.count % 5 == 0 for row in device.kernels)
    assert audit_tables(observed, details=True)
    broken = tmp_path / "broken.xplane.pb"
    broken.write_bytes(gzip.decompress(RECORDED.read_bytes())[:5000])
    with pytest.raises(InputError, match="not a whole profile"):
        audit([broken], FACTS, cache=False)


def test_spoiled_bytes_are_an_answer_or_one_line(tmp_path: Path) -> None:
    whole = gzip.decompress(RECORDED.read_bytes())
    draw = random.Random(5)
    path = tmp_path / "spoiled.xplane.pb"
    for _ in range(60):
        content = bytearray(whole)
        for _ in range(draw.randint(1, 60)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        path.write_bytes(content)
        try:
            ledger = audit([path], FACTS, cache=False).job.ledger
            assert sum(ledger.accounts.values()) == pytest.approx(ledger.gpu_seconds, rel=1e-9)
        except InputError as error:
            assert "\n" not in str(error)


# --- as Chrome reads it


def chrome(*events: dict[str, Any]) -> bytes:
    return json.dumps(
        {
            "displayTimeUnit": "ns",
            "metadata": {"highres-ticks": True},
            "traceEvents": [
                {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
                {
                    "ph": "M",
                    "pid": 1,
                    "tid": 7,
                    "name": "thread_name",
                    "args": {"name": "Stream #7"},
                },
                {"ph": "M", "pid": 2, "name": "process_name", "args": {"name": "/host:CPU"}},
                {"ph": "M", "pid": 2, "tid": 1, "name": "thread_name", "args": {"name": "python"}},
                *events,
                {},
            ],
        }
    ).encode()


def span(pid: int, name: str, start: float, length: float, **stats: str) -> dict[str, Any]:
    tid = 7 if pid == 1 else 1
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": name,
        "ts": start,
        "dur": length,
        "args": stats,
    }


STEPS = [
    span(2, "train", 0, 100, step_num="0"), span(2, "train", 100, 100, step_num="1"),
    span(2, "cuLaunchKernel", 20, 2, correlation_id="1"), span(1, "gemm", 30, 60, correlation_id="1"),
    span(2, "cuLaunchKernel", 140, 2, correlation_id="2"), span(1, "gemm", 150, 50, correlation_id="2"),
]  # fmt: skip


def test_a_chrome_trace_of_jax_is_read_where_only_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "node.trace.json.gz"
    path.write_bytes(gzip.compress(chrome(*STEPS)))
    observed = audit([tmp_path], FACTS, cache=False)
    assert only(observed).origin.kind == "xplane"
    assert microseconds(observed) == {"compute": 110, "host": 90}
    (tmp_path / "node.xplane.pb.gz").write_bytes(RECORDED.read_bytes())
    observed = audit([tmp_path], FACTS, cache=False)
    assert only(observed).source.endswith(".xplane.pb.gz")
    assert sum("Chrome traces beside profiles" in text for text in observed.left_out) == 1


@pytest.mark.parametrize(
    "strange",
    [
        b"{}",
        chrome()[:200],
        chrome({"ph": "X", "pid": 1, "name": 3}),
        chrome(*STEPS)[:-60],
        chrome(span(1, "k", -5, 3), span(1, "k", 1e300, 1), {"ph": "X", "ts": "x", "dur": []}),
        chrome({"ph": "M", "pid": {}, "name": "process_name", "args": []}),
    ],
)
def test_spoiled_chrome_traces_are_an_answer_or_one_line(tmp_path: Path, strange: bytes) -> None:
    path = tmp_path / "node.trace.json"
    path.write_bytes(strange)
    try:
        audit([path], FACTS, cache=False)
    except InputError as error:
        assert "\n" not in str(error)


# --- real ones of a GPU


@pytest.mark.shared
@pytest.mark.parametrize("name", ["jax_gpu", "jax_gpu_stall"])
def test_a_gpu_s_profile_goes_the_whole_way(
    data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """50 ms of sleep before every step are the difference; a step of 21 ms computes as long in both."""
    path = data_folder / "recordings" / "foreign" / name
    html, perfetto = tmp_path / "report.html", tmp_path / "run.json"
    words = [
        "audit",
        str(path),
        "--no-cache",
        "--model",
        "gpt-2",
        "--global-batch",
        "8",
        "--seq-len",
        "1024",
        "--html",
        str(html),
        "--perfetto",
        str(perfetto),
        "--price",
        "3",
        "-o",
        "json",
    ]
    assert run(words) == 0
    data = json.loads(capsys.readouterr().out)
    ledger = data["ledger"]
    whole = ledger["gpus"] * ledger["wall_seconds"]
    assert sum(ledger["accounts"].values()) == pytest.approx(whole)
    assert [source["kind"] for source in data["sources"]] == ["xplane"]
    assert data["per_rank"][0]["device"] == "NVIDIA H200"
    assert ledger["mfu"] > 0
    assert ledger["accounts"].get("unexplained", 0) < 0.001 * whole
    busy = sum(seconds for account, seconds in ledger["accounts"].items() if "compute" in account)
    assert busy == pytest.approx(0.060, rel=0.03)
    slept = ledger["accounts"]["host"] - 0.0145
    assert slept == pytest.approx(0.15 if name == "jax_gpu_stall" else 0, abs=0.002)
    found = [finding["rule"] for finding in data["findings"]]
    assert found == (["host-stall"] if name == "jax_gpu_stall" else [])
    assert "input-stall" in {one["rule"] for one in data["abstained"]}
    assert "NVIDIA H200" in html.read_text()
    assert json.loads(perfetto.read_text())["computeflow.accounts"] is True


@pytest.mark.shared
def test_a_chrome_trace_and_its_profile_say_the_same(data_folder: Path, tmp_path: Path) -> None:
    folder = data_folder / "recordings/foreign/jax_gpu/plugins/profile/run"
    whole = audit([folder / "node.xplane.pb"], FACTS, cache=False)
    copy = audit([folder / "node.trace.json.gz"], FACTS, cache=False)
    assert copy.job.ledger.accounts == pytest.approx(whole.job.ledger.accounts, rel=1e-3, abs=1e-5)
    assert copy.ranks[0].steps == whole.ranks[0].steps
    assert read_rank(copy.ranks[0]).origin.part == 0
