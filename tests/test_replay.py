"""The replay: a recorded step run again, with and without its profiler, and with edits."""

from __future__ import annotations

import csv
import lzma
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from benchmarks.corpus import Recording, recordings

from computeflow.catalog import load_catalog
from computeflow.diagnosis import Diagnosis, diagnose
from computeflow.diagnosis.diagnose import make_case
from computeflow.diagnosis.marginal_gains import LEAST
from computeflow.replay import ReplayedStep, replay_step
from computeflow.replay.edits import (
    all_of,
    with_device_times,
    with_host_times,
    with_merged_work,
    without_calls,
    without_host_time,
    without_waits,
)
from computeflow.replay.engine import recorded, run
from computeflow.replay.replayed_step import NOISE, STALLS
from computeflow.telemetry.trace_audit import audit
from computeflow.telemetry.traces import graph_builder
from computeflow.telemetry.traces.job_ledgers import TracedJob
from computeflow.telemetry.traces.step_graph import StepGraph
from kineto_maker import Maker

ROOT = Path(__file__).parents[1]
FOREIGN = ROOT / "benchmarks" / "foreign"
CATALOG = load_catalog(())
OWN = [one for one in recordings() if "2 ranks" not in one.name]
TRUTH = {row["recording"]: row for row in csv.DictReader((FOREIGN / "truth.csv").open())}
KEPT = sorted(path.name.partition(".")[0] for path in FOREIGN.glob("traces/*.json.xz"))
CHEAP_WAITS = {"host-sync-8", "host-sync-deep", "host-sync-twelve"}
"""Waits that cost 1, 3 and 0 % of a step that is not recorded (the run's last step, beside steps
without them): silence is right, too."""
HARDLY_HOST_BOUND = {"launch-bound-wide"}
"""Without the profiler its step takes 13.6 ms, its device alone 12.3: silence is right, too."""

GIVEN = {
    "hf_base": None, "hf_eager_attention": "unfused-attention", "hf_tiny_batch": "launch-bound",
    "hf_save_each": "checkpoint-stall", "hf_slow_dataset": "input-stall", "gpt_base": None,
    "gpt_gc": "host-stall", "gpt_python": "host-stall", "pl_base": None, "pl_sync": "host-sync",
    "jax_gpu": None, "jax_gpu_stall": "host-stall",
}  # fmt: skip
"""Recordings of other hosts, given with their truth, and the rule that must come first."""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign")
    for name in KEPT:
        packed = FOREIGN / "traces" / f"{name}.json.xz"
        (folder / f"{name}.json").write_bytes(lzma.decompress(packed.read_bytes()))
    return folder


@cache
def audited(path: Path) -> TracedJob:
    return audit([path], CATALOG, cache=False)


@cache
def diagnosed(path: Path) -> Diagnosis:
    return diagnose(audited(path), CATALOG)


def replayed(path: Path) -> ReplayedStep:
    graph = audited(path).ranks[0].graph
    assert graph is not None
    return replay_step(graph)


@pytest.mark.parametrize("one", OWN, ids=lambda one: one.name)
def test_an_unchanged_replay_gives_the_window_of_our_own_recordings(one: Recording) -> None:
    assert abs(replayed(one.path).error) <= 0.005


@pytest.mark.parametrize("name", KEPT)
def test_a_foreign_recording_is_understood_and_its_step_found(name: str, unpacked: Path) -> None:
    step = replayed(unpacked / f"{name}.json")
    assert abs(step.error) <= 0.005
    truth = float(TRUTH[name]["step_seconds_unprofiled"])
    assert abs(step.seconds.middle / truth - 1) <= 0.10


@pytest.mark.parametrize("name", KEPT)
def test_a_foreign_recording_gets_its_cause_first(name: str, unpacked: Path) -> None:
    row = TRUTH[name]
    rules = [finding.rule for finding in diagnosed(unpacked / f"{name}.json").findings]
    assert rules[:1] == ([] if row["cause"] == "none" else [row["cause"]])


@pytest.mark.shared
@pytest.mark.parametrize("name", GIVEN)
def test_a_given_recording_gets_its_cause_first(name: str, data_folder: Path) -> None:
    folder = data_folder / "recordings" / "foreign"
    path = folder / f"{name}.json.gz"
    job = audit([path if path.exists() else folder / name], CATALOG, cache=False)
    rules = [finding.rule for finding in diagnose(job, CATALOG).findings]
    assert rules[:1] == ([GIVEN[name]] if GIVEN[name] else [])


def test_foreign_claims_are_near_what_removing_the_mistake_gained(unpacked: Path) -> None:
    errors = []
    for name in KEPT:
        row = TRUTH[name]
        if row["cause"] == "none":
            continue
        path = unpacked / f"{name}.json"
        first = diagnosed(path).findings[0]
        claimed = first.gpu_seconds / audited(path).job.ledger.gpu_seconds
        gained = 1 - float(row["step_seconds_fixed"]) / float(row["step_seconds_unprofiled"])
        errors.append(abs(claimed - gained))
    errors.sort()
    assert errors[len(errors) // 2] <= 0.04
    assert sum(error <= 0.12 for error in errors) >= 0.9 * len(errors)


@pytest.mark.parametrize("one", OWN, ids=lambda one: one.name)
def test_our_own_recordings_get_their_cause_first(one: Recording) -> None:
    rules = [finding.rule for finding in diagnosed(one.path).findings]
    if one.name in CHEAP_WAITS | HARDLY_HOST_BOUND:
        assert not rules or rules[0] == one.rule
    else:
        assert rules[:1] == ([one.rule] if one.rule else [])


@pytest.mark.parametrize("one", OWN, ids=lambda one: one.name)
def test_no_second_of_a_replayed_step_is_claimed_twice(one: Recording) -> None:
    diagnosis = diagnosed(one.path)
    findings, step = diagnosis.findings, diagnosis.as_it_runs
    assert step is not None
    recorded = audited(one.path).job.ledger.gpu_seconds
    claimed = dict.fromkeys((c.account for f in findings for c in f.claims), 0.0)
    for claim in (claim for finding in findings for claim in finding.claims):
        claimed[claim.account] += claim.gpu_seconds / recorded
    for account, share in claimed.items():
        assert share <= step.ledger.booked(account) / step.ledger.gpu_seconds + 1e-9
    for finding in findings:
        assert finding.remedy is not None and finding.remedy.gain_gpu_seconds is not None
        assert 0 < finding.remedy.gain_gpu_seconds <= finding.gpu_seconds * (1 + 1e-9)


def made(folder: Path, *, kernel: float, gap: float, steps: int = 4, kernels: int = 50) -> Path:
    """A job whose host needs `gap` microseconds before each launch, and whose kernels take `kernel`."""
    maker = Maker()
    for number in range(steps):
        start = maker.host
        for _ in range(kernels):
            maker.host += gap
            maker.kernel("work", kernel)
        maker.span("user_annotation", "Optimizer.step#SGD.step", maker.host, 1.0)
        maker.host += 2.0
        maker.step(number, start)
    return maker.write(folder)


def graph_of(path: Path) -> StepGraph:
    graph = audit([path], CATALOG, cache=False).ranks[0].graph
    assert graph is not None
    return graph


def test_the_slower_of_host_and_device_sets_the_step(tmp_path: Path) -> None:
    graph = graph_of(made(tmp_path, kernel=100.0, gap=8.0))
    step = run(graph, recorded(graph)).step_seconds
    assert step == pytest.approx(50 * 101e-6, rel=0.02)
    graph = graph_of(made(tmp_path, kernel=5.0, gap=98.0))
    step = run(graph, recorded(graph)).step_seconds
    assert step == pytest.approx(50 * 100e-6, rel=0.02)


def test_edits_change_what_they_name_and_nothing_else(tmp_path: Path) -> None:
    graph = graph_of(made(tmp_path, kernel=5.0, gap=98.0))
    plain = recorded(graph)
    every = np.ones(len(graph.line), bool)
    rows = np.ones(len(graph.device), bool)
    half = with_host_times(every, 0.5)(graph, plain)
    assert run(graph, half).step_seconds == pytest.approx(
        0.5 * run(graph, plain).step_seconds, rel=0.05
    )
    assert (half.device == plain.device).all()
    none = without_calls(every)(graph, plain)
    assert run(graph, none).step_seconds == pytest.approx(plain.tail / graph.steps / 1e9)
    stall = without_host_time(np.full(len(graph.line), 1e12))(graph, plain)
    assert not stall.gap.any() and (stall.cost == plain.cost).all()
    slow = with_device_times(rows, 10.0)(graph, plain)
    assert slow.device.sum() == pytest.approx(10 * plain.device.sum())
    one = with_merged_work(rows, 0.5)(graph, plain)
    assert np.nansum(one.device) == pytest.approx(0.5 * plain.device.sum())
    assert int((~np.isnan(one.device)).sum()) == graph.steps
    both = all_of((without_waits(every), with_device_times(rows, 2.0)))(graph, plain)
    assert not both.waits.any() and both.device.sum() == pytest.approx(2 * plain.device.sum())


def test_a_measured_step_pins_the_host(unpacked: Path) -> None:
    path = unpacked / "gpt2_tiny.json"
    measured = float(TRUTH["gpt2_tiny"]["step_seconds_unprofiled"])
    graph = audited(path).ranks[0].graph
    assert graph is not None
    step = replay_step(graph, measured)
    assert step.seconds.middle == pytest.approx(measured, rel=0.01)
    case = make_case(audited(path), CATALOG, (), measured)
    assert case.step is not None and case.step.seconds == step.seconds


def test_a_claimed_range_holds_what_repeats_differ_by(unpacked: Path) -> None:
    path = unpacked / "gpt2_norm-items.json"
    remedy = diagnosed(path).findings[0].remedy
    assert remedy is not None and remedy.gain_low is not None and remedy.gain_high is not None
    window = audited(path).job.ledger.gpu_seconds
    assert remedy.gain_low < LEAST * window
    assert remedy.gain_high - remedy.gain_low >= 2 * NOISE * window


def stalled(folder: Path, places: list[int]) -> Path:
    """A job of one step for each place: the host stands still for 20 ms before that launch."""
    maker = Maker()
    for number, place in enumerate(places):
        start = maker.host
        for launch in range(60):
            maker.host += 20_000.0 if launch == place else 8.0
            maker.kernel("work", 20.0)
        maker.span("user_annotation", "Optimizer.step#SGD.step", maker.host, 1.0)
        maker.host += 2.0
        maker.step(number, start)
    return maker.write(folder)


def test_a_stall_counts_where_it_comes_back_at_one_place(tmp_path: Path) -> None:
    graph = graph_of(stalled(tmp_path, [10, 10, 11, 10]))
    assert [stall.is_regular for stall in graph.stalls] == [True] * 4
    assert not graph.line.irregular.any()
    step = replay_step(graph)
    assert step.seconds.low > 0.95 * STALLS[0] * 0.02
    graph = graph_of(stalled(tmp_path, [5, 20, 35, 50]))
    assert [stall.is_regular for stall in graph.stalls] == [False] * 4
    assert graph.line.irregular.sum() == pytest.approx(4 * 20e6, rel=0.01)
    step = replay_step(graph)
    assert step.seconds.low < 0.003 and step.seconds.high > 0.02


def test_a_finding_says_where_the_host_stands_still(tmp_path: Path) -> None:
    path = stalled(tmp_path, [0, 0, 0, 0])
    (finding,) = diagnose(audit([path], CATALOG, cache=False), CATALOG).findings
    assert finding.rule == "host-stall"
    assert finding.title.endswith("before the forward pass, in every step")
    assert finding.remedy is not None and "with_stack" in finding.remedy.command


def test_steps_are_told_by_the_optimizer_where_none_are_marked(tmp_path: Path) -> None:
    path = made(tmp_path, kernel=100.0, gap=8.0)
    text = path.read_text().replace("ProfilerStep", "Whatever")
    path.write_text(text)
    graph = graph_of(path)
    assert graph.steps == 3 and set(graph.line.step.tolist()) == {0, 1, 2}
    step = run(graph, recorded(graph)).step_seconds
    assert step == pytest.approx(50 * 101e-6, rel=0.02)


def test_a_long_recording_is_replayed_by_its_first_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path, kernel=100.0, gap=8.0, steps=6)
    assert graph_of(path).steps == 6
    monkeypatch.setattr(graph_builder, "MAX_CALLS", 210)
    graph = graph_of(path)
    assert graph.steps == 4
    assert run(graph, recorded(graph)).step_seconds == pytest.approx(50 * 101e-6, rel=0.02)
    monkeypatch.setattr(graph_builder, "MAX_CALLS", 10)
    assert graph_of(path).steps == 2
    monkeypatch.setattr(graph_builder, "MAX_ROWS", 10)
    assert audit([path], CATALOG, cache=False).ranks[0].graph is None
