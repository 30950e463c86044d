"""Made runs: what the house's own pipeline finds in them is what was planted, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, pairwise
from threading import Thread
from typing import Any

import numpy as np
import pytest
from benchmarks.fleet_bodies import FleetBodies, Plant
from benchmarks.fleet_load import Load, running_load
from benchmarks.live_batches import deliveries
from benchmarks.live_fleet import KINDS, Fault, Fleet, MadeRun, make_run
from benchmarks.online_cases import (
    CaseResult,
    OnlineCase,
    faulty_cases,
    healthy_cases,
    judge_case,
)
from benchmarks.prove_collector import find_latencies
from benchmarks.prove_online import report
from benchmarks.step_noise import PHASES, apart, draw, load_noise

from computeflow.catalog import load_catalog
from computeflow.collection.wire.batches import Batch, pack_batch, rank_files, unpack_batch
from computeflow.diagnosis import Diagnosis, diagnose_source
from computeflow.telemetry.run_folders.rank_file import RankFile, RankStart, join_parts
from computeflow.telemetry.run_folders.run_folder_source import measure_run, report_run
from computeflow.telemetry.run_folders.run_summary import RunDescription
from computeflow.telemetry.source_reports import SourceRequest

REQUEST = SourceRequest(catalog=load_catalog(()))
FLEET = Fleet(ranks=4, steps=240, step_seconds=0.2)


def received(run: MadeRun) -> list[Batch]:
    return [unpack_batch(pack_batch(batch)) for _, batch in deliveries(run)]


def files_of(run: MadeRun) -> list[RankFile]:
    starts: dict[tuple[int, int], RankStart] = {}
    parts: dict[int, list[RankFile]] = {}
    for batch in received(run):
        for part in rank_files(batch, starts):
            starts[part.file.start.rank, 0] = part.file.start
            parts.setdefault(part.file.start.rank, []).append(part.file)
    return [join_parts(parts[rank]) for rank in sorted(parts)]


def judged(run: MadeRun) -> Diagnosis:
    attempts = measure_run(files_of(run), [])
    about = RunDescription(folder="", name="made", command="", more={})
    return diagnose_source(report_run(attempts, about, REQUEST))


@pytest.mark.parametrize(
    ("fault", "rule", "ranks"),
    [
        (Fault(kind="slow-rank", severity=1.5, rank=2), "straggler-rank", (2,)),
        (Fault(kind="slow-loader", severity=1.3, rank=1), "input-stall", (1,)),
        (Fault(kind="slow-loader-all", severity=1.3), "input-stall", ()),
        (Fault(kind="gc", severity=1.3, rank=3), "gc-pause", (3,)),
        (Fault(kind="host-stall", severity=1.3, rank=0), "host-stall", (0,)),
        (Fault(kind="checkpoint", severity=1.3), "checkpoint-stall", ()),
        (Fault(kind="evaluation", severity=1.4), "evaluation", ()),
        (Fault(kind="memory-pressure", severity=1.0, rank=1), "memory-pressure", (1,)),
        (Fault(kind="regression", severity=1.5, begin=120), "regression", ()),
        (Fault(kind="killed", severity=1.0, rank=1, begin=100), "silent-rank", (1,)),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else "",
)
@pytest.mark.parametrize("noise", [None, "production-ST"])
def test_audit_finds_what_was_planted(
    fault: Fault, rule: str, ranks: tuple[int, ...], noise: str | None
) -> None:
    model = load_noise()[noise] if noise else None
    findings = judged(make_run(replace(FLEET, faults=(fault,), noise=model))).findings
    assert findings and (findings[0].rule, findings[0].ranks) == (rule, ranks)


@pytest.mark.parametrize("noise", [None, "production-ST", "h200-a"])
def test_audit_finds_nothing_in_a_healthy_run(noise: str | None) -> None:
    model = load_noise()[noise] if noise else None
    assert judged(make_run(replace(FLEET, noise=model))).findings == ()


@pytest.mark.parametrize("kind", ["hang", "killed", "slow-rank"])
def test_every_record_is_sent_once_and_in_order(kind: str) -> None:
    fault = Fault(kind=kind, severity=20.0 if kind == "hang" else 1.5, rank=5, begin=50)  # type: ignore[arg-type]
    run = make_run(Fleet(ranks=16, steps=80, step_seconds=0.3, faults=(fault,)))
    rows: dict[int, list[tuple[int, int]]] = {}
    for batch in received(run):
        for part in batch.ranks:
            rows.setdefault(part.rank, []).append((part.first, part.records))
    assert sorted(rows) == list(range(16))
    for sent in rows.values():
        assert sent[0][0] == 0
        assert all(first + count == later for (first, count), (later, _) in pairwise(sent))


def test_a_made_run_has_every_step_and_every_arrival_once() -> None:
    fault = Fault(kind="hang", severity=15.0, rank=1, begin=30)
    run = make_run(replace(FLEET, steps=60, faults=(fault,)))
    for rank, file in enumerate(files_of(run)):
        assert (file.steps.end == run.end[rank]).all()
        assert (np.sort(file.arrivals.at) == np.sort(run.arrivals[rank].ravel())).all()
        assert len(set(file.arrivals.sequence)) == len(file.arrivals)


def test_ranks_that_wait_tell_where_they_are() -> None:
    fault = Fault(kind="hang", severity=15.0, rank=1, begin=30)
    run = make_run(replace(FLEET, steps=60, faults=(fault,)))
    inside: dict[int, set[str]] = {}
    for batch in received(run):
        for rows in batch.ranks:
            for beat in rows.news.beats if rows.news else ():
                inside.setdefault(rows.rank, set()).add(beat.inside)
    assert inside == {0: {"b"}, 1: {"f"}, 2: {"b"}, 3: {"b"}}


def test_a_step_of_all_ranks_ends_with_its_last_one() -> None:
    fault = Fault(kind="slow-rank", severity=2.0, rank=3, begin=10, end=20)
    run = make_run(replace(FLEET, steps=40, faults=(fault,)))
    length = np.diff(run.end.max(axis=0))
    assert length[10:18] == pytest.approx(0.2e6 * 1.87, rel=0.01)
    assert length[25:] == pytest.approx(0.2e6, rel=0.01)


@pytest.mark.parametrize("name", load_noise())
def test_drawn_noise_is_that_of_its_source(name: str) -> None:
    noise = load_noise()[name]
    step = 1 + draw(noise, 8, 4000, 1.0, np.random.default_rng(1)).sum(axis=2)
    spread = 1.4826 * np.median(np.abs(step - np.median(step)))
    assert spread == pytest.approx(noise.measured["spread"], rel=0.6, abs=0.01)
    for limit, share in noise.measured["over"].items():
        drawn = float((step > float(limit[:-1])).mean())
        assert drawn == pytest.approx(share, rel=1.0, abs=0.05)


@pytest.mark.parametrize("name", [n.name for n in load_noise().values() if n.ranks > 1])
def test_ranks_are_as_far_apart_in_made_runs_as_in_real_ones(name: str) -> None:
    """Within a factor of 2.5, both ways: windows of real runs are few."""
    noise = load_noise()[name]
    step = 1 + draw(noise, noise.ranks, 6000, 1.0, np.random.default_rng(2)).sum(axis=2)
    for window, measured in noise.measured["apart"].items():
        assert 0.4 < apart(step, int(window)) / measured < 2.5


def test_the_same_seed_makes_the_same_run() -> None:
    noise = load_noise()["h200-a"]
    one, other = (make_run(replace(FLEET, noise=noise, seed=7)) for _ in range(2))
    assert (one.end == other.end).all()
    assert len(PHASES) == len(noise.quantiles)


def test_packed_bodies_of_a_fleet_are_batches_with_every_record_once() -> None:
    plant = Plant(rank=11, begin=2, end=4)
    fleet = FleetBodies(
        24, run="fleet", start=1.79e9, noise=load_noise()["production-ST"], plants=(plant,)
    )
    taken: dict[int, int] = {}
    for number in range(5):
        times = fleet.times() if number else None
        bodies = fleet.bodies(times, times.over / 1e6) if times else fleet.opening()
        for body in bodies:
            batch = unpack_batch(body)
            assert batch.number == number
            for place, rows in enumerate(batch.ranks):
                assert rows.first == taken.get(rows.rank, 0)
                taken[rows.rank] = rows.first + rows.records
                assert batch.node == f"node{rows.rank // 8:05d}"
                if times:
                    assert batch.steps["end"][place] == times.end[rows.rank, 0] == rows.last
    assert taken == dict.fromkeys(range(24), fleet.records_per_rank)


def test_bodies_of_several_steps_are_those_of_the_steps_one_by_one() -> None:
    noise = load_noise()["production-ST"]
    one, many = (
        FleetBodies(16, run="r", start=1.79e9, noise=noise, steps_per_body=steps)
        for steps in (1, 4)
    )
    assert (many.times().end[:, :1] == one.times().end).all()


@pytest.mark.live
def test_a_fleet_sends_everything_though_the_collector_has_no_room_at_times() -> None:
    """A stand-in for the collector that refuses every fifth batch at first."""
    taken: dict[int, int] = {}
    asked = count()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_full = next(asked) % 5 == 0
            for rows in () if is_full else unpack_batch(body).ranks:
                taken[rows.rank] = max(taken.get(rows.rank, 0), rows.first + rows.records)
            self.send_response(503 if is_full else 200)
            self.send_header("Content-Length", "2")
            self.send_header("Retry-After", "0.01")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        load = Load(port=server.server_port, ranks=64, steps=4, real_time=False, connections=4)
        with running_load(load) as sending:
            result = sending.result()
        server.shutdown()
    assert result.statuses["503"] > 0 and result.rank_steps == 256
    assert taken == dict.fromkeys(range(64), result.records_per_rank)


def test_a_fault_that_the_watcher_finds_is_judged_as_found_and_a_healthy_run_as_silent() -> None:
    case = OnlineCase(
        noise="production-ST",
        level=1.0,
        ranks=2,
        steps=150,
        step_seconds=0.2,
        seed=1,
        fault=Fault(kind="slow-rank", severity=2.0, rank=1, begin=60, end=110),
    )
    result = judge_case(case)
    assert result.found and result.right == 1 and not result.wrong
    healthy = judge_case(replace(case, fault=None))
    assert not healthy.found and not healthy.wrong


@pytest.mark.parametrize("judging", [False, True])
def test_there_are_at_least_two_hundred_faulty_runs_of_every_kind(judging: bool) -> None:
    cases = list(faulty_cases(judging))
    assert len(cases) >= 200
    assert {case.fault.kind for case in cases if case.fault} == set(KINDS)
    assert {case.ranks for case in cases} == {2, 8, 64, 1024}


def test_what_judges_and_what_develops_have_no_noise_and_no_seed_in_common() -> None:
    halves = [[*faulty_cases(judging), *healthy_cases(judging, 100)] for judging in (False, True)]
    for field in ("noise", "seed"):
        one, other = ({getattr(case, field) for case in half} for half in halves)
        assert not one & other


def test_latency_counts_from_the_end_of_the_first_slow_step_and_other_findings_are_wrong() -> None:
    plants = (Plant(rank=5, begin=10, end=20), Plant(rank=9, begin=40, end=50))
    ends = [1000.0 + step for step in range(60)]
    found = {"rule": "straggler-rank", "title": "slow"}
    findings: list[dict[str, Any]] = [
        found | {"key": "a", "ranks": [5], "opened": 1012.5, "onset": 1009.0},
        found | {"key": "b", "ranks": [8], "opened": 1042.0, "onset": 1039.0},
    ]
    latency, wrong = find_latencies(findings, plants, ends)
    assert latency == [2.5, None]
    assert wrong == ["straggler-rank [8]: slow"]


def test_the_report_of_the_online_rules_names_what_was_missed_and_what_was_wrong() -> None:
    cases = list(faulty_cases(False))[:2]
    results = [
        CaseResult(case=cases[0], opened_seconds=2.0, opened_steps=4, closed_seconds=5.0, right=1),
        CaseResult(case=cases[1], wrong=("gc-pause (3,) at 9 s: rank 3 collects",)),
    ]
    text = report(results, judging=False)
    assert "- faults found: 1 of 2 (50.0%)" in text
    assert "## Missed: 1" in text and "gc-pause (3,) at 9 s" in text
