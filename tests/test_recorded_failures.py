"""Run folders of runs that hang, die, restart or end with a save: what is booked and what is named."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computeflow.catalog import load_catalog
from computeflow.diagnosis import Diagnosis, diagnose_source
from computeflow.diagnosis.rules.recordings import OthersMedian
from computeflow.economics.checkpoint_intervals import poisson_range, saving_cost, young_seconds
from computeflow.ledger import Ledger
from computeflow.recorder.frames import MAGIC, Record, packed_all
from computeflow.telemetry.run_folders.run_facts import RecordedRun
from computeflow.telemetry.source_registry import observe, sort_files
from computeflow.telemetry.source_reports import SourceReport, SourceRequest
from run_folder_maker import MS, Training

ASKED = SourceRequest(catalog=load_catalog(()))
SECOND = 1000 * MS
Files = list[list[Record]]


def write(folder: Path, files: Files, attempt: int = 0) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    for rank, records in enumerate(files):
        path = folder / f"rank-{rank:05d}.attempt-{attempt}.cfr"
        path.write_bytes(MAGIC + packed_all(records))
    return folder


def read(folder: Path) -> SourceReport:
    reports, failed = observe(sort_files([folder]).files, [], ASKED)
    assert not failed
    return reports[0]


def judge(folder: Path) -> Diagnosis:
    return diagnose_source(read(folder))


def ledger_of(folder: Path) -> Ledger:
    ledger = read(folder).ledger
    assert ledger is not None
    return ledger


def last_step(records: list[Record]) -> Record:
    return next(record for record in reversed(records) if record["k"] == "s")


def arrive(records: list[Record], *, group: str = "0", operation: str = "allreduce") -> None:
    """The rank comes to the collectives of the next step, 50 ms after its last one."""
    seen = [record for record in records if record["k"] == "c" and record["g"] == group]
    number = seen[-1]["q"] + 3 if seen else 3
    records.append(
        {
            "k": "c",
            "g": group,
            "o": operation,
            "q": number,
            "a": [last_step(records)["t"] + 50 * MS, 1, 1],
        }
    )


def beat(records: list[Record], seconds: int, inside: str = "b", since: int = 0) -> None:
    """Heart beats after the last step; it came into the phase `since` seconds after that."""
    step = last_step(records)
    records += [
        {
            "k": "b",
            "t": step["t"] + SECOND * n,
            "n": step["n"],
            "in": inside,
            "for": SECOND * max(n - since, 0),
        }
        for n in range(1, seconds + 1)
    ]


def end(records: list[Record], how: str, seconds: float = 0.0) -> None:
    records.append({"k": "end", "t": last_step(records)["t"] + round(seconds * SECOND), "how": how})


def made(ranks: int = 4, steps: int = 40, **more: Any) -> Files:
    return Training(ranks=ranks, steps=steps, ends=False, **more).records()


# What comes after the last step


def rest(records: list[Record], letter: str, seconds: int, more: Mapping[str, object]) -> Record:
    step = last_step(records)
    return {
        "k": "rest",
        "n": step["n"] + 1,
        "t": step["t"] + (seconds + 1) * SECOND,
        "d": (seconds + 1) * SECOND,
        "p": [letter, SECOND // 2, seconds * SECOND],
        **more,
    }


@pytest.mark.parametrize(
    ("letter", "account", "more"),
    [
        ("c", "checkpoint", {}),
        ("v", "evaluation", {}),
        ("u", "checkpoint", {"u": ["save"]}),
        ("u", "evaluation", {"u": ["validation"]}),
    ],
)
def test_a_save_or_evaluation_after_the_last_step_is_booked(
    tmp_path: Path, letter: str, account: str, more: Mapping[str, object]
) -> None:
    files = made(ranks=2)
    for records in files:
        records.append(rest(records, letter, 6, more))
        end(records, "exit", 7)
    ledger = ledger_of(write(tmp_path, files))
    assert ledger.booked(account) == pytest.approx(2 * 6)
    assert ledger.booked("idle") == pytest.approx(2 * 0.5)


def test_a_last_save_that_is_an_event_too_is_booked_once(tmp_path: Path) -> None:
    (records,) = made(ranks=1)
    at = last_step(records)["t"] + SECOND // 2
    records.append({"k": "e", "t": at, "w": "checkpoint", "d": 6 * SECOND, "text": "save"})
    records.append(rest(records, "c", 6, {}))
    end(records, "exit", 7)
    report = read(write(tmp_path, [records]))
    assert report.ledger is not None
    assert report.ledger.booked("checkpoint") == pytest.approx(6)
    assert [event.what for event in report.happenings] == ["checkpoint"]


def test_what_follows_the_last_step_is_no_step_and_needs_no_sense(tmp_path: Path) -> None:
    for fields in ({}, {"t": "x"}, {"t": 1, "d": 10**12}, {"p": ["c", -1, 5]}, {"p": 7}):
        (records,) = made(ranks=1)
        records.append(rest(records, "c", 1, {}) | fields)
        assert read(write(tmp_path, [records])).facts.steps == 40


# Ranks that fall silent


def killed(seconds: int = 30, how: str | None = None, rank: int = 2) -> Files:
    """One of four ranks is killed after its last step; the others wait, and may fail then."""
    files = made()
    for number, records in enumerate(files):
        if number != rank:
            arrive(records)
            beat(records, seconds)
            if how:
                end(records, how, seconds)
    return files


def test_a_rank_that_was_killed_is_named_while_the_others_wait(tmp_path: Path) -> None:
    diagnosis = judge(write(tmp_path, killed(30)))
    (found,) = [finding for finding in diagnosis.findings if finding.rule == "silent-rank"]
    assert diagnosis.findings[0] is found and found.ranks == (2,)
    assert "rank 2 on host fell silent after step 40" in found.title and "30 s" in found.title
    assert found.account == "idle" and found.gpu_seconds == pytest.approx(4 * 30, rel=0.02)
    assert found.remedy is not None and "dmesg" in found.remedy.command
    assert not [finding for finding in diagnosis.findings if finding.rule == "hang"]


def test_a_killed_rank_is_named_when_the_others_have_failed(tmp_path: Path) -> None:
    found = judge(write(tmp_path, killed(30, "exception"))).findings[0]
    assert (found.rule, found.ranks) == ("silent-rank", (2,))
    assert "the others failed" in found.title
    assert found.gpu_seconds == pytest.approx(4 * 30, rel=0.02)


def test_a_killed_rank_is_named_when_the_others_failed_at_once(tmp_path: Path) -> None:
    """A broken connection ends the others within a heart beat: the collectives tell who was missing."""
    found = judge(write(tmp_path, killed(0, "exception"))).findings
    assert [(finding.rule, finding.ranks) for finding in found] == [("silent-rank", (2,))]


def test_ranks_that_give_up_later_without_a_last_record_are_not_blamed(tmp_path: Path) -> None:
    files = made()
    for rank, records in enumerate(files):
        if rank != 2:
            arrive(records)
            beat(records, 30 + 10 * rank)
    found = judge(write(tmp_path, files)).findings[0]
    assert (found.rule, found.ranks) == ("silent-rank", (2,))


def test_a_node_that_was_lost_is_one_finding(tmp_path: Path) -> None:
    files = made(ranks=4, host=lambda rank: f"node{rank // 2}")
    for records in files[2:]:
        arrive(records)
        beat(records, 20)
    found = judge(write(tmp_path, files)).findings[0]
    assert (found.rule, found.ranks) == ("silent-rank", (0, 1))
    assert "on node0" in found.title


def test_a_rank_killed_before_a_restart_is_named_with_the_waiting_in_restart(
    tmp_path: Path,
) -> None:
    write(tmp_path, killed(30, "exception"))
    Training(ranks=4, steps=40, attempt=1, first_count=41, begins=60 * SECOND).write(tmp_path)
    findings = {finding.rule: finding for finding in judge(tmp_path).findings}
    found = findings["silent-rank"]
    assert found.ranks == (2,) and "and the run restarted" in found.title
    booked = {claim.account: claim.gpu_seconds for claim in found.claims}
    assert booked["restart"] == pytest.approx(4 * 30, rel=0.02) and not booked["idle"]


def cut_off() -> Files:
    return made()


def still_written() -> Files:
    """Files that grow: their last flushes lie some seconds apart."""
    files = made()
    for rank, records in enumerate(files):
        beat(records, 2 + rank)
    return files


def one_failed() -> Files:
    """Rank 1 raised; its launcher stopped the others, which were in a collective, a second later."""
    files = made()
    for rank, records in enumerate(files):
        if rank != 1:
            arrive(records)
            beat(records, 1)
    end(files[1], "exception")
    return files


def one_failed_on_another_node() -> Files:
    """Rank 1 raised, its launcher stopped rank 0 at once; the other node noticed after 30 s."""
    files = made(host=lambda rank: f"node{rank // 2}")
    for rank, records in enumerate(files):
        if rank != 1:
            arrive(records)
            beat(records, 1 if rank == 0 else 30)
    end(files[1], "exception")
    return files


def all_ended() -> Files:
    files = made()
    for rank, records in enumerate(files):
        beat(records, 10 * rank)
        end(records, "exit", 10 * rank)
    return files


@pytest.mark.parametrize(
    "make", [cut_off, still_written, one_failed, one_failed_on_another_node, all_ended]
)
def test_no_rank_is_silent(tmp_path: Path, make: Callable[[], Files]) -> None:
    assert read(write(tmp_path, make())).facts.silent == ()


def test_a_clock_that_is_ahead_makes_no_rank_silent(tmp_path: Path) -> None:
    files = made(ranks=2, clock_ahead={1: 20 * SECOND})
    assert read(write(tmp_path, files)).facts.silent == ()
    for records in files:
        beat(records, 8)
    report = read(write(tmp_path, files))
    assert report.facts.silent == () and report.ledger is not None
    assert report.ledger.booked("idle") == pytest.approx(2 * 8, abs=0.1)


# Hangs, by cause


def hang(folder: Path, inside: str, seconds: int, **more: Any) -> RecordedRun:
    files = made(ranks=3, **more)
    for rank, records in enumerate(files):
        if rank != 1:
            arrive(records)
        beat(records, seconds, inside if rank == 1 else "b")
    facts: RecordedRun = read(write(folder, files)).facts
    return facts


@pytest.mark.parametrize("inside", ["f", "d", "", "o"])
def test_a_rank_asleep_is_missing_after_a_few_seconds(tmp_path: Path, inside: str) -> None:
    stuck = hang(tmp_path, inside, 6).stuck
    assert stuck is not None and (stuck.missing, stuck.waiting) == ((1,), (0, 2))
    assert stuck.wait_seconds == pytest.approx(5.95, abs=0.01)
    assert stuck.inside_seconds[1] == pytest.approx(6)
    assert hang(tmp_path / "early", inside, 4).stuck is None


def test_ten_usual_steps_must_have_passed(tmp_path: Path) -> None:
    slow = {"forward": 1 * SECOND, "backward": 1 * SECOND}
    assert hang(tmp_path / "a", "f", 19, **slow).stuck is None
    stuck = hang(tmp_path / "b", "f", 22, **slow).stuck
    assert stuck is not None and stuck.missing == (1,)


@pytest.mark.parametrize(
    ("inside", "before", "quiet", "lasting"),
    [
        ("c", 0, 590, 610),
        ("v", 0, 590, 610),
        ("k", 0, 590, 610),
        ("c", 20, 95, 105),
        ("v", 20, 95, 105),
        ("v", 2, 55, 65),
    ],
)
def test_a_known_pause_is_no_hang_unless_it_lasts_far_longer_than_before(
    tmp_path: Path, inside: str, before: int, quiet: int, lasting: int
) -> None:
    """Five times the longest before and a minute, ten minutes where there was none."""

    def extra(rank: int, step: int) -> Mapping[str, int]:
        return {inside: before * SECOND} if before and step == 20 else {}

    assert hang(tmp_path / "a", inside, quiet, extra=extra).stuck is None
    stuck = hang(tmp_path / "b", inside, lasting, extra=extra).stuck
    assert stuck is not None and stuck.missing == (1,)


def test_ranks_that_all_evaluate_are_not_stuck(tmp_path: Path) -> None:
    files = made(ranks=3)
    for records in files:
        beat(records, 60, "v")
    assert read(write(tmp_path, files)).facts.stuck is None


def test_a_save_on_one_rank_that_others_await_unseen_is_no_hang(tmp_path: Path) -> None:
    files = made(ranks=3)
    for rank, records in enumerate(files):
        beat(records, 60, "c" if rank == 0 else "")
    assert read(write(tmp_path, files)).facts.stuck is None


def test_without_collectives_all_ranks_are_stuck_after_ten_seconds(tmp_path: Path) -> None:
    for seconds, expected in ((9, None), (11, ())):
        files = made(ranks=2)
        for records in files:
            beat(records, seconds, "f")
        stuck = read(write(tmp_path / str(seconds), files)).facts.stuck
        assert (stuck and stuck.missing) == expected


def test_compiling_again_may_take_as_long_as_the_first_time(tmp_path: Path) -> None:
    files = made(ranks=1, extra=lambda rank, step: {"f": 15 * SECOND} if step == 1 else {})
    beat(files[0], 25, "f")
    assert read(write(tmp_path, files)).facts.stuck is None


def test_a_rank_in_a_different_collective_is_missing(tmp_path: Path) -> None:
    """The others reduce gradients; rank 1 is in a group of its own, where nobody will come."""
    files = made(ranks=4)
    for rank, records in enumerate(files):
        records.insert(2, {"k": "c", "g": "1", "o": "barrier", "q": 0, "a": [0]})
        if rank == 1:
            arrive(records, group="1", operation="barrier")
        else:
            arrive(records)
        beat(records, 10)
    stuck = read(write(tmp_path, files)).facts.stuck
    assert stuck is not None and (stuck.missing, stuck.waiting) == ((1,), (0, 2, 3))


def test_a_rank_with_another_operation_under_the_same_number_is_named(tmp_path: Path) -> None:
    files = made(ranks=4)
    for rank, records in enumerate(files):
        arrive(records, operation="barrier" if rank == 3 else "allreduce")
        beat(records, 10)
    found = judge(write(tmp_path, files)).findings[0]
    assert (found.rule, found.ranks) == ("hang", (3,))
    assert "came to another collective" in found.title


def test_two_ranks_in_different_collectives_are_both_shown_and_none_is_blamed(
    tmp_path: Path,
) -> None:
    files = made(ranks=2)
    for rank, records in enumerate(files):
        arrive(records, operation="barrier" if rank else "allreduce")
        beat(records, 10)
    found = judge(write(tmp_path, files)).findings[0]
    assert (found.rule, found.ranks) == ("hang", ())
    assert "allreduce, barrier" in found.title


def test_the_end_of_a_chain_of_waits_is_missing(tmp_path: Path) -> None:
    """Rank 1 sleeps; rank 0 waits for it in one group, rank 2 for rank 0 in another."""
    files = made(ranks=3)
    for rank, records in enumerate(files):
        if rank != 1:
            records.insert(
                2, {"k": "c", "g": "pair", "r": [0, 2], "o": "allgather", "q": 0, "a": [0]}
            )
        if rank == 0:
            arrive(records)
        if rank == 2:
            arrive(records)
            records[-1]["a"][0] -= 20 * MS
            arrive(records, group="pair", operation="allgather")
        beat(records, 10)
    stuck = read(write(tmp_path, files)).facts.stuck
    assert stuck is not None and stuck.missing == (1,)


# Checkpoints and failures


def attempts(
    folder: Path, *, count: int, steps: int, every: int, save: int, lost: int, how: str = ""
) -> Path:
    """Attempts that fail after so many steps and go on `lost` steps before that."""
    begins, first = 0, 1
    for attempt in range(count):
        training = Training(
            ranks=2,
            steps=steps,
            attempt=attempt,
            begins=begins,
            first_count=first,
            ends=attempt == count - 1,
            extra=lambda rank, step: {"c": save} if step % every == 0 else {},
        )
        files = training.records()
        if how and attempt < count - 1:
            for records in files:
                end(records, how)
        write(folder, files, attempt)
        begins += 4 * SECOND + steps * 102 * MS + steps // every * save
        first += steps - lost
    return folder


def of_rule(diagnosis: Diagnosis, rule: str) -> list[str]:
    return [finding.title for finding in diagnosis.findings if finding.rule == rule]


def test_saves_that_are_too_rare_for_the_failures_are_named(tmp_path: Path) -> None:
    folder = attempts(tmp_path, count=9, steps=200, every=150, save=100 * MS, lost=50)
    diagnosis = judge(folder)
    (found,) = [f for f in diagnosis.findings if f.rule == "checkpoint-interval"]
    assert "too rarely" in found.title and found.account == "lost"
    assert found.remedy is not None and found.remedy.gain_low is not None
    facts: RecordedRun = read(folder).facts
    assert facts.saves is not None
    assert facts.saves.seconds == pytest.approx(0.1)
    assert facts.saves.interval_seconds == pytest.approx(149 * 0.1016, rel=0.01)


def test_saves_that_are_too_frequent_for_the_failures_are_named(tmp_path: Path) -> None:
    folder = attempts(tmp_path, count=4, steps=600, every=5, save=300 * MS, lost=2)
    (found,) = [f for f in judge(folder).findings if f.rule == "checkpoint-interval"]
    assert "too often" in found.title and found.account == "checkpoint"


def test_a_good_interval_is_no_finding(tmp_path: Path) -> None:
    folder = attempts(tmp_path, count=9, steps=200, every=14, save=100 * MS, lost=7)
    diagnosis = judge(folder)
    assert not of_rule(diagnosis, "checkpoint-interval")
    assert "checkpoint-interval" not in [skipped.rule for skipped in diagnosis.abstained]


@pytest.mark.parametrize(("count", "skipped"), [(1, False), (2, True), (3, True), (4, False)])
def test_few_failures_make_no_rate(tmp_path: Path, count: int, skipped: bool) -> None:
    folder = attempts(tmp_path, count=count, steps=60, every=20, save=100 * MS, lost=5)
    rules = [each.rule for each in judge(folder).abstained]
    assert ("checkpoint-interval" in rules) == skipped


def test_attempts_that_ended_by_themselves_are_no_failures(tmp_path: Path) -> None:
    folder = attempts(tmp_path, count=9, steps=200, every=150, save=100 * MS, lost=50, how="exit")
    diagnosis = judge(folder)
    assert not of_rule(diagnosis, "checkpoint-interval")
    assert "checkpoint-interval" not in [skipped.rule for skipped in diagnosis.abstained]


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(0, 0, 3.689), (1, 0.0253, 5.572), (3, 0.6187, 8.767), (100, 81.36, 121.6)],
)
def test_the_range_of_a_poisson_mean_is_the_exact_one(count: int, low: float, high: float) -> None:
    assert poisson_range(count) == pytest.approx((low, high), rel=1e-3)


def test_youngs_interval_costs_least() -> None:
    best = young_seconds(30, 4 * 3600)
    costs = [saving_cost(best * factor, 30, 1 / (4 * 3600)) for factor in (0.9, 1.0, 1.1)]
    assert costs[1] == min(costs)


# A slow node


def slow_on(ranks: Iterable[int], micros: int = 15 * MS) -> Callable[[int, int], Mapping[str, int]]:
    chosen = set(ranks)
    return lambda rank, step: {"b": micros} if rank in chosen else {}


def test_slow_ranks_of_one_host_are_named_as_a_node(tmp_path: Path) -> None:
    training = Training(
        ranks=16, jitter=0.03, host=lambda rank: f"node{rank // 4}", extra=slow_on(range(4, 8))
    )
    found = judge(training.write(tmp_path)).findings[0]
    assert (found.rule, found.ranks) == ("straggler-rank", (4, 5, 6, 7))
    assert "node node1 (ranks 4, 5, 6, 7)" in found.title
    assert any(each.where == "node node1" for each in found.evidence)
    assert found.remedy is not None and "node1" in found.remedy.change


def test_one_slow_rank_of_a_host_is_no_slow_node(tmp_path: Path) -> None:
    training = Training(
        ranks=16, jitter=0.03, host=lambda rank: f"node{rank // 4}", extra=slow_on([5])
    )
    found = judge(training.write(tmp_path)).findings[0]
    assert found.ranks == (5,) and "node" not in found.title


def test_slow_ranks_of_two_hosts_are_no_slow_node(tmp_path: Path) -> None:
    training = Training(
        ranks=16, jitter=0.03, host=lambda rank: f"node{rank // 4}", extra=slow_on([5, 9])
    )
    found = judge(training.write(tmp_path)).findings[0]
    assert found.ranks == (5, 9) and "node" not in found.title


@given(st.lists(st.sampled_from([0.0, 1.0, 1.5, 2.0, 7.0]), min_size=2, max_size=9), st.data())
def test_the_median_without_one_is_that_of_the_others(
    values: list[float], data: st.DataObject
) -> None:
    """A rank is slow against the others: a rule takes their medians from one sort."""
    place = data.draw(st.integers(0, len(values) - 1))
    others = [value for index, value in enumerate(values) if index != place]
    assert OthersMedian(values).without(values[place]) == statistics.median(others)
