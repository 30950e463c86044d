"""Findings in run folders: every made fault is named first, on its rank; healthy runs are silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from computeflow.catalog import load_catalog
from computeflow.diagnosis import Diagnosis, diagnose_source
from computeflow.ledger import Finding
from computeflow.recorder.frames import MAGIC, Record, packed_all
from computeflow.telemetry.source_registry import observe, sort_files
from computeflow.telemetry.source_reports import SourceRequest
from computeflow.units import format_seconds
from run_folder_maker import MS, Extra, Training

ASKED = SourceRequest(catalog=load_catalog(()))


def judged(folder: Path) -> Diagnosis:
    reports, failed = observe(sort_files([folder]).files, [], ASKED)
    assert not failed
    return diagnose_source(reports[0])


def first(folder: Path) -> Finding:
    findings = judged(folder).findings
    assert findings, "nothing was found"
    return findings[0]


def every(steps: int, **micros: int) -> Extra:
    return lambda rank, step: micros if step % steps == 0 else {}


def on_one(**micros: int) -> Extra:
    return lambda rank, step: micros if rank == 1 else {}


HEALTHY: dict[str, Training] = {
    "plain": Training(ranks=4),
    "one rank": Training(ranks=1),
    "two ranks that jitter": Training(jitter=0.1, steps=150, seed=4),
    "eight ranks that jitter": Training(ranks=8, jitter=0.1, steps=80, seed=5),
    "short checkpoints": Training(steps=400, extra=every(100, c=150 * MS)),
    "a rare evaluation": Training(steps=400, extra=every(200, v=300 * MS)),
    "compiling": Training(
        steps=80, extra=lambda rank, step: {"f": 20_000 * MS // step**3 if step < 5 else 0}
    ),
    "a loss outside of the model": Training(gap=4 * MS, jitter=0.05),
    "small steps": Training(
        data=300, forward=2 * MS, backward=5 * MS, optimizer=2 * MS, transfer=300, steps=300
    ),
    "two ranks that share cores": Training(
        steps=200,
        extra=lambda rank, step: {"b": 8 * MS * ((step * 7 + rank * 3) % 5 == 0)},
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_runs_are_silent(tmp_path: Path, name: str) -> None:
    assert judged(HEALTHY[name].write(tmp_path)).findings == ()


FAULTS: list[tuple[str, tuple[int, ...], Training]] = [
    ("input-stall", (), Training(extra=lambda rank, step: {"d": 20 * MS})),
    ("input-stall", (), Training(ranks=1, extra=lambda rank, step: {"d": 20 * MS})),
    ("input-stall", (1,), Training(ranks=4, extra=on_one(d=20 * MS))),
    ("input-stall", (1,), Training(extra=on_one(d=20 * MS), jitter=0.05)),
    ("checkpoint-stall", (), Training(extra=every(20, c=700 * MS))),
    ("checkpoint-stall", (1,), Training(
        extra=lambda rank, step: {"c": 500 * MS} if rank == 1 and step % 20 == 0 else {})),
    ("gc-pause", (), Training(extra=every(3, g=40 * MS))),
    ("gc-pause", (1,), Training(ranks=4, extra=on_one(g=15 * MS))),
    ("evaluation", (), Training(extra=every(20, v=900 * MS))),
    ("host-stall", (), Training(extra=lambda rank, step: {"gap": 12 * MS})),
    ("host-stall", (1,), Training(extra=on_one(gap=15 * MS))),
    ("host-stall", (), Training(extra=every(10, gap=300 * MS))),
    ("straggler-rank", (1,), Training(ranks=4, extra=on_one(b=15 * MS), jitter=0.05)),
    ("straggler-rank", (1,), Training(extra=on_one(f=15 * MS), jitter=0.05)),
    ("straggler-rank", (1,), Training(ranks=8, extra=on_one(o=9 * MS))),
    ("imbalance", (1,), Training(
        tokens=lambda rank, step: 6144 if rank == 1 else 4096,
        extra=on_one(f=15 * MS, b=30 * MS))),
    ("imbalance", (), Training(
        tokens=lambda rank, step: 6144 if step % 2 == rank else 4096,
        extra=lambda rank, step: {"f": 15 * MS, "b": 30 * MS} if step % 2 == rank else {})),
    ("regression", (), Training(
        steps=240, jitter=0.03, extra=lambda rank, step: {"f": 100 * step})),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "ranks", "training"), FAULTS)
def test_a_made_fault_is_named_first_and_on_its_rank(
    tmp_path: Path, rule: str, ranks: tuple[int, ...], training: Training
) -> None:
    found = first(training.write(tmp_path))
    assert (found.rule, found.ranks) == (rule, ranks), found.title


@pytest.mark.parametrize("letter", ["d", "f", "b", "c", "v", "g", "gap"])
def test_the_cost_of_a_fault_is_what_it_took_from_all_ranks(tmp_path: Path, letter: str) -> None:
    """50 ms on one of two ranks, in every step but the first: the other one waits as long."""
    found = first(Training(steps=81, extra=on_one(**{letter: 50 * MS})).write(tmp_path))
    assert found.gpu_seconds == pytest.approx(2 * 80 * 0.05, rel=0.1)


def test_time_a_step_is_over_the_steps_that_are_booked(tmp_path: Path) -> None:
    """The first of 81 steps is start-up: its time is not in the finding, nor is it counted."""
    training = Training(ranks=1, steps=81, extra=lambda rank, step: {"d": 50 * MS})
    reports, _ = observe(sort_files([training.write(tmp_path)]).files, [], ASKED)
    (rank,) = reports[0].facts.per_rank
    assert (rank.steps, rank.booked_steps) == (81, 80)
    (found,) = diagnose_source(reports[0]).findings
    per_step = found.gpu_seconds / rank.booked_steps
    assert found.title == f"each step waits {format_seconds(per_step)} for data"
    assert per_step == pytest.approx(rank.parts["input"], rel=1e-3)
    assert found.evidence[0].where == "account input, 80 steps"


@pytest.mark.parametrize(
    ("letter", "title"),
    [
        ("d", "rank 1 waits for data and the others wait for it, "),
        (
            "gap",
            "the host of rank 1 stalls between the optimizer and the next batch, outside any recorded "
            "phase: ",
        ),
    ],
)
def test_a_title_says_who_and_where(tmp_path: Path, letter: str, title: str) -> None:
    found = first(Training(steps=81, extra=on_one(**{letter: 50 * MS})).write(tmp_path))
    assert found.title.startswith(title)


def test_a_restart_is_named(tmp_path: Path) -> None:
    Training(steps=40, ends=False).write(tmp_path)
    Training(steps=40, attempt=1, first_count=31, begins=9_000 * MS).write(tmp_path)
    found = first(tmp_path)
    assert found.rule == "restarts" and "repeating 10 steps" in found.title
    assert {claim.account for claim in found.claims} == {"restart", "lost"}


def test_a_hang_is_named_with_who_is_missing(tmp_path: Path) -> None:
    for rank, records in enumerate(Training(ranks=3, steps=30, ends=False).records()):
        step, collectives = records[-2:]
        if rank != 1:
            late = {"q": collectives["q"] + 3, "a": [step["t"] + 50 * MS, 1, 1]}
            records.append({**collectives, **late})
        beats: list[Record] = [
            {"k": "b", "t": step["t"] + 1000 * MS * n, "n": 30, "in": "b", "for": 1000 * MS * n}
            for n in range(1, 61)
        ]
        path = tmp_path / f"rank-{rank}.attempt-0.cfr"
        path.write_bytes(MAGIC + packed_all([*records, *beats]))
    found = first(tmp_path)
    assert (found.rule, found.ranks) == ("hang", (1,))
    assert "rank 1 never arrived" in found.title


def test_memory_that_is_too_small_is_named(tmp_path: Path) -> None:
    (records,) = Training(ranks=1, steps=40).records()
    records += [{"k": "m", "allocated": 1 << 36, "retries": 25, "ooms": 0}]
    (tmp_path / "rank-0.attempt-0.cfr").write_bytes(MAGIC + packed_all(records))
    assert first(tmp_path).rule == "memory-pressure"


def test_without_collectives_stragglers_are_not_judged(tmp_path: Path) -> None:
    for rank, records in enumerate(Training(extra=on_one(f=40 * MS)).records()):
        kept = [record for record in records if record["k"] != "c"]
        (tmp_path / f"rank-{rank}.attempt-0.cfr").write_bytes(MAGIC + packed_all(kept))
    diagnosis = judged(tmp_path)
    assert diagnosis.findings == ()
    assert [skipped.rule for skipped in diagnosis.abstained] == ["straggler-rank"]


REAL = Path(__file__).parent / "data" / "run_folders"
"""Two ranks over gloo under `computeflow record` on a busy host with two cores, each with one fault."""


@pytest.mark.parametrize(
    ("name", "rule", "ranks"),
    [
        ("loader", "input-stall", ()),
        ("slow", "host-stall", (1,)),
        ("save", "checkpoint-stall", (0,)),
        ("gc", "gc-pause", ()),
        ("eval", "evaluation", ()),
        ("sleep", "host-stall", ()),
    ],
)
def test_the_fault_of_a_real_run_is_named_first(
    name: str, rule: str, ranks: tuple[int, ...]
) -> None:
    found = first(REAL / name)
    assert (found.rule, found.ranks) == (rule, ranks), found.title


def test_a_real_run_without_a_fault_is_silent() -> None:
    assert judged(REAL / "clean").findings == ()


@pytest.mark.parametrize("name", sorted(path.name for path in REAL.iterdir()))
def test_real_runs_are_explained(name: str) -> None:
    reports, _ = observe(sort_files([REAL / name]).files, [], ASKED)
    ledger = reports[0].ledger
    assert ledger is not None
    assert ledger.booked("unexplained") < 0.05 * ledger.gpu_seconds


def straggler_of_save() -> Finding:
    (found,) = (f for f in judged(REAL / "save").findings if f.rule == "straggler-rank")
    return found


def test_a_straggler_claims_what_its_longer_computing_costs_and_no_more() -> None:
    """Rank 0 saves, too: that, and the waits for it, are the claim of `checkpoint-stall`."""
    found = straggler_of_save()
    reports, _ = observe(sort_files([REAL / "save"]).files, [], ASKED)
    excess = reports[0].facts.per_rank[0].excess
    longer = excess.steps * sum(
        excess.by_part[part] for part in ("forward", "backward", "optimizer")
    )
    assert found.gpu_seconds <= 2 * longer * (1 + 1e-9)
    own = {
        claim.account: claim.gpu_seconds for claim in found.claims if claim.account != "straggler"
    }
    assert sum(own.values()) == pytest.approx(longer)
    assert own["optimizer"] == pytest.approx(excess.steps * excess.by_part["optimizer"])


def test_the_evidence_of_a_straggler_is_its_claims_and_its_title() -> None:
    found = straggler_of_save()
    told = [each.value for each in found.evidence if each.where.startswith("account ")]
    assert told == [claim.gpu_seconds for claim in found.claims]
    assert not any("checkpoint" in each.where for each in found.evidence)
    own, usual = found.evidence[-1].value, found.evidence[-1].expected
    assert own is not None and usual is not None
    assert found.title == (
        f"1 rank waits for rank 0, {format_seconds(own - usual)} a step: it computes for "
        f"{format_seconds(own)}, others for {format_seconds(usual)}; its optimizer differs most"
    )


def test_findings_of_a_run_claim_no_second_twice() -> None:
    reports, _ = observe(sort_files([REAL / "save"]).files, [], ASKED)
    ledger, claimed = reports[0].ledger, dict[str, float]()
    assert ledger is not None
    for claim in (claim for found in judged(REAL / "save").findings for claim in found.claims):
        claimed[claim.account] = claimed.get(claim.account, 0.0) + claim.gpu_seconds
    assert all(ledger.booked(name) >= seconds for name, seconds in claimed.items())


def test_several_slow_ranks_gain_what_the_slowest_of_them_loses(tmp_path: Path) -> None:
    more = {1: 30 * MS, 2: 20 * MS}
    training = Training(ranks=5, steps=81, extra=lambda rank, step: {"f": more.get(rank, 0)})
    found = first(training.write(tmp_path))
    assert (found.rule, found.ranks) == ("straggler-rank", (1, 2))
    assert found.gpu_seconds == pytest.approx(5 * 80 * 0.03, rel=0.1)
    assert found.title.startswith("3 ranks wait for ranks 1, 2, 30 ms a step: rank 1 computes for ")
