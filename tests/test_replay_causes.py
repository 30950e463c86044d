"""Causes that recordings of other people's code showed: waits, queues, saving, frozen models."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from benchmarks.foreign.unpack import unpacked
from benchmarks.prove_foreign import judge, truth_of

from computeflow.catalog import load_catalog
from computeflow.diagnosis import diagnose
from computeflow.diagnosis.rules.step_regions import in_long_runs, places_of
from computeflow.replay import replay_step
from computeflow.replay.engine import recorded, run
from computeflow.telemetry.trace_audit import audit
from computeflow.telemetry.traces.step_graph import StepGraph
from kineto_maker import Maker

CATALOG = load_catalog(())
NEW_HANDS = Path(__file__).parents[1] / "benchmarks" / "foreign_new_hands"
KEPT = sorted(path.name.partition(".")[0] for path in NEW_HANDS.glob("traces/*.json.xz"))
TRUTH = {row["recording"]: row for row in csv.DictReader((NEW_HANDS / "truth-fit.csv").open())}


def graph_of(path: Path) -> StepGraph:
    graph = audit([path], CATALOG, cache=False).ranks[0].graph
    assert graph is not None
    return graph


def end_step(maker: Maker, number: int, start: float) -> None:
    maker.span("user_annotation", "Optimizer.step#SGD.step", maker.host, 1.0)
    maker.host += 2.0
    maker.step(number, start)


def copy(maker: Maker, name: str, size: int, length: float) -> None:
    """A copy that ends within its call, on an idle device."""
    number = 100_000 + len(maker.events)
    maker.host = max(maker.host, maker.device) + 5.0
    maker.span("cuda_runtime", "cudaMemcpyAsync", maker.host, length + 10.0, correlation=number)
    maker.events.append(
        {
            "ph": "X",
            "cat": "gpu_memcpy",
            "name": name,
            "pid": 0,
            "tid": 7,
            "ts": maker.host + 4.0 + maker.clock,
            "dur": length,
            "args": {"correlation": number, "stream": 7, "device": 0, "bytes": size},
        }
    )
    maker.device = maker.host + 4.0 + length
    maker.host += length + 11.0


def busy_steps(folder: Path, clock: float) -> Path:
    """Kernels queued far ahead of their device, which leaves 3 microseconds between two of them."""
    maker = Maker(clock=clock)
    for number in range(3):
        start = maker.host
        for _ in range(60):
            maker.device += 3.0
            maker.kernel("work", 50.0)
        end_step(maker, number, start)
    return maker.write(folder)


def test_gaps_of_the_device_are_kept_where_a_recordings_times_are_negative(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    after, before = (
        graph_of(busy_steps(tmp_path / name, clock))
        for name, clock in (("a", 0.0), ("b", -1_000_000.0))
    )
    assert np.array_equal(after.device.gap, before.device.gap)
    assert np.median(before.device.gap) == 3_000


def test_a_full_queue_of_one_stream_does_not_stop_launches_to_another(tmp_path: Path) -> None:
    maker = Maker()
    free = {7: maker.device, 8: maker.device}
    for number in range(2):
        start = maker.host
        for launch in range(800):
            stream = 7 + launch % 2
            maker.device = free[stream]
            maker.kernel("work", 100.0, stream=stream)
            free[stream] = maker.device
        end_step(maker, number, start)
    graph = graph_of(maker.write(tmp_path))
    host = float((graph.line.gap + graph.line.cost).sum()) / 1e9 / graph.steps
    assert host < 0.01
    assert abs(replay_step(graph).error) <= 0.005


@pytest.mark.parametrize(
    ("name", "size", "blocks"),
    [
        ("Memcpy DtoD (Device -> Device)", 1 << 22, False),
        ("Memcpy HtoD (Pinned -> Device)", 1 << 22, False),
        ("Memcpy HtoD (Pageable -> Device)", 1 << 10, False),
        ("Memcpy HtoD (Pageable -> Device)", 1 << 22, True),
        ("Memcpy DtoH (Device -> Pageable)", 8, True),
    ],
)
def test_a_copy_that_ends_within_its_call_blocks_only_if_cuda_says_so(
    tmp_path: Path, name: str, size: int, blocks: bool
) -> None:
    maker = Maker()
    for number in range(3):
        start = maker.host
        for _ in range(50):
            maker.kernel("work", 5.0)
        copy(maker, name, size, 20.0)
        maker.host += 100.0
        end_step(maker, number, start)
    graph = graph_of(maker.write(tmp_path))
    assert bool((graph.line.waits_for >= 0).any()) == blocks


def test_a_checkpoint_in_one_step_of_three_stays_in_the_step_as_it_runs(tmp_path: Path) -> None:
    maker = Maker()
    for number in range(3):
        start = maker.host
        for _ in range(60):
            maker.host += 8.0
            maker.kernel("work", 20.0)
        for _ in range(10 if number == 1 else 0):
            copy(maker, "Memcpy DtoH (Device -> Pageable)", 1 << 20, 100.0)
            maker.host += 20_000.0
        end_step(maker, number, start)
    step = replay_step(graph_of(maker.write(tmp_path)))
    assert step.recorded_seconds > 0.06
    assert step.seconds.middle == pytest.approx(step.recorded_seconds, rel=0.02)


@pytest.mark.parametrize(("milliseconds", "is_regular"), [(20, False), (60, True)])
def test_a_stall_that_is_too_long_for_an_accident_is_the_programs_own(
    tmp_path: Path, milliseconds: int, is_regular: bool
) -> None:
    maker = Maker()
    for number in range(4):
        start = maker.host
        for launch in range(60):
            maker.host += 1e3 * milliseconds if (number, launch) == (1, 30) else 8.0
            maker.kernel("work", 20.0)
        end_step(maker, number, start)
    graph = graph_of(maker.write(tmp_path))
    assert [stall.is_regular for stall in graph.stalls] == [is_regular]


@pytest.mark.parametrize(("kernel", "rules"), [(4.0, ["launch-bound"]), (25.0, [])])
def test_launches_are_a_cause_where_the_device_idles_for_most_of_the_step(
    tmp_path: Path, kernel: float, rules: list[str]
) -> None:
    maker = Maker()
    for number in range(3):
        start = maker.host
        for _ in range(200):
            maker.host += 40.0
            maker.kernel("work", kernel)
        end_step(maker, number, start)
    job = audit([maker.write(tmp_path)], CATALOG, cache=False)
    assert [finding.rule for finding in diagnose(job, CATALOG).findings] == rules


def test_reads_near_each_other_are_one_place(tmp_path: Path) -> None:
    graph = graph_of(busy_steps(tmp_path, 0.0))
    calls = np.zeros(len(graph.line), bool)
    calls[[3, 5, 40]] = True
    calls[100:120:2] = True
    assert [len(place) for place in places_of(calls)] == [2, 1, 10]
    assert np.array_equal(np.flatnonzero(in_long_runs(graph, calls)), np.arange(100, 120, 2))


@pytest.mark.parametrize("name", KEPT)
def test_recordings_by_new_hands_are_understood(name: str) -> None:
    with unpacked(NEW_HANDS / "traces" / f"{name}.json.xz") as path:
        row = judge(path, TRUTH[name])
        graph = graph_of(path)
    assert row.step is not None
    assert run(graph, recorded(graph)).step_seconds > 0
    assert "evaluation" not in row.rules, "a reference model is part of the training"
    if row.is_ordinary:
        assert row.rules == ()
    elif row.counts:
        assert row.exact


def test_the_truth_of_a_half_may_lie_beside_its_traces(tmp_path: Path) -> None:
    assert truth_of([tmp_path], "foreign_new_hands", "fit") == NEW_HANDS / "truth-fit.csv"
    beside = tmp_path / "truth-fit.csv"
    beside.write_text("recording\n")
    assert truth_of([tmp_path], "foreign_new_hands", "fit") == beside
