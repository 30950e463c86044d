"""What a collector has booked of a run when it ends is what `audit` says of its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from computeflow import codec
from computeflow.answers.audits import audit
from computeflow.collection.online.live_values import LiveRun
from computeflow.collection.online.run_totals import RunTotals
from computeflow.collection.online.watcher import Watcher, WatchOptions
from computeflow.ledger import Ledger
from computeflow.recorder.frames import MAGIC, Record, packed_all
from live_stream import records_of, watch
from run_folder_maker import MS, Training

DATA = Path(__file__).parent / "data"
FOLDERS = [*sorted((DATA / "run_folders").iterdir()), *sorted((DATA / "gpu_runs").iterdir())]
WARM = 0.025
"""The first three steps of a run are start-up online, the first one in `audit`."""


def ranks_of(folder: Path) -> list[list[Record]]:
    return [records_of(path) for path in sorted(folder.glob("rank-*.cfr"))]


def watched(records: list[list[Record]], watcher: Watcher | None = None) -> LiveRun:
    watcher = watcher or Watcher(WatchOptions())
    watch(records, watcher=watcher, after=3.0)
    (run,) = watcher.runs()
    return run


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_books_of_a_run_are_those_of_audit(folder: Path) -> None:
    run = watched(ranks_of(folder))
    (ledger,) = audit(folder).report.recordings.ledgers
    total = sum(run.booked.values())
    assert total == pytest.approx(
        ledger.gpu_seconds, rel=0.03
    )  # the last steps of one are not sent
    for account in {*run.booked, *ledger.accounts}:
        booked = run.booked.get(account, 0.0) / total
        assert booked == pytest.approx(ledger.booked(account) / ledger.gpu_seconds, abs=WARM)
    assert run.goodput is not None and 0 < run.goodput <= 1


def test_goodput_is_the_share_of_kept_steps_however_fast_they_are() -> None:
    """By a median step, a run whose steps became slower had kept all of its time, start-up too."""
    slow = Training(
        ranks=1, steps=300, extra=lambda rank, step: {"d": 120 * MS} if step > 100 else {}
    )
    saving = Training(
        ranks=1, steps=300, extra=lambda rank, step: {"c": 120 * MS} if step > 100 else {}
    )
    run, other = watched(slow.records()), watched(saving.records())
    outside = run.booked["startup"] / sum(run.booked.values())
    assert run.goodput == pytest.approx(1 - outside) and outside > 0.02
    assert other.booked["checkpoint"] == pytest.approx(run.booked["input"], rel=0.02)
    assert other.goodput is not None and other.goodput < 0.6


def test_a_restart_of_the_watch_goes_on_with_the_books() -> None:
    records = ranks_of(DATA / "run_folders" / "save")
    before = watched([rank[: len(rank) * 2 // 3] for rank in records])
    watcher = Watcher(WatchOptions())
    watcher.know_booked(before, before.updated)
    run, whole = watched(records, watcher), watched(records)
    assert sum(run.booked.values()) == pytest.approx(sum(whole.booked.values()), rel=0.02)
    assert run.booked["checkpoint"] == pytest.approx(whole.booked["checkpoint"], rel=0.1)
    assert run.kept_steps == pytest.approx(whole.kept_steps, abs=3)


AGAIN = Training(
    ranks=2, steps=300, attempt=1, first_count=201, begins=120_000 * MS, startup=20_000 * MS
)
"""It begins 88 s after the last step of `FIRST`, and does a hundred of its steps again."""
FIRST = Training(ranks=2, steps=300)


def test_a_restart_of_the_watch_while_the_run_starts_again_books_the_restart() -> None:
    before = watched([*FIRST.records(), *(rank[:3] for rank in AGAIN.records())])
    watcher = Watcher(WatchOptions())
    watcher.know_booked(codec.decode(LiveRun, codec.encode(before), "run"), before.updated)
    run = watched(AGAIN.records(), watcher)
    whole = watched([*FIRST.records(), *AGAIN.records()])
    assert before.attempt == 1 and before.books is not None and before.books.attempt == 0
    assert before.booked["restart"] == pytest.approx(whole.booked["restart"], rel=0.01)
    assert whole.booked["restart"] > 2 * 100 and "restart" not in before.books.booked
    assert run.booked == pytest.approx(whole.booked, rel=0.01)
    assert run.kept_steps == whole.kept_steps == 497
    assert run.goodput == pytest.approx(whole.goodput, rel=0.02)


def test_books_of_a_store_without_their_state_are_gone_on_with() -> None:
    before = replace(watched(FIRST.records()), books=None)
    watcher = Watcher(WatchOptions())
    watcher.know_booked(before, before.updated)
    run = watched(AGAIN.records(), watcher)
    assert run.booked["restart"] > 2 * 100 and run.kept_steps > before.kept_steps + 250


def test_books_of_an_older_store_with_a_median_step_are_gone_on_with() -> None:
    before = watched(FIRST.records())
    data = codec.encode(before)
    data["books"]["paces"] = [
        {"world": 2, "kept_steps": before.kept_steps, "steps": 297, "step_seconds": 0.1}
    ]
    watcher = Watcher(WatchOptions())
    watcher.know_booked(codec.decode(LiveRun, data, "run"), before.updated)
    run = watched(AGAIN.records(), watcher)
    assert run.kept_steps > before.kept_steps + 150 and run.booked["lost"] > 0
    assert run.goodput is not None and 0 < run.goodput < 0.5


def test_goodput_counts_each_step_by_the_ranks_that_did_it() -> None:
    fewer = Training(ranks=2, steps=600, attempt=1, first_count=601, begins=65_000 * MS)
    run = watched([*Training(ranks=4, steps=600).records(), *fewer.records()])
    lost = run.booked["startup"] + run.booked["restart"]
    assert run.goodput == pytest.approx(1 - lost / sum(run.booked.values()), rel=0.02)


def beating(training: Training, seconds: int, inside: str) -> list[list[Record]]:
    """Its records, and a heart beat each second after its last step."""
    ranks = replace(training, ends=False).records()
    for rank in ranks:
        last = max(record["t"] for record in rank if record["k"] == "s")
        rank += [
            {"k": "b", "t": last + each, "n": training.steps, "in": inside, "for": each}
            for each in range(1000 * MS, (seconds + 1) * 1000 * MS, 1000 * MS)
        ]
    return ranks


def audited(records: list[list[Record]], folder: Path) -> Ledger:
    for rank, mine in enumerate(records):
        path = folder / f"rank-{rank:05d}.attempt-0.cfr"
        path.write_bytes(MAGIC + packed_all(mine))
    (ledger,) = audit(folder).report.recordings.ledgers
    assert isinstance(ledger, Ledger)
    return ledger


def test_how_long_processes_take_to_end_is_not_booked(tmp_path: Path) -> None:
    records = beating(FIRST, 60, "")
    for rank in records:
        rank.append({"k": "end", "t": rank[-1]["t"], "how": "exit"})
    run = watched(records)
    assert sum(run.booked.values()) == pytest.approx(
        audited(records, tmp_path).gpu_seconds, rel=0.01
    )


def test_a_save_after_a_long_last_step_is_booked_as_one(tmp_path: Path) -> None:
    training = replace(FIRST, extra=lambda rank, step: {"v": 9000 * MS} if step == 300 else {})
    records = beating(training, 20, "c")
    for rank in records:
        last = rank[-1]["t"]
        rank.append({"k": "e", "t": last - 20_000 * MS, "d": 20_000 * MS, "w": "checkpoint"})
        rank.append({"k": "end", "t": last, "how": "exit"})
    run, ledger = watched(records), audited(records, tmp_path)
    for account in ("evaluation", "checkpoint"):
        assert run.booked[account] == pytest.approx(ledger.booked(account), rel=0.03)


@pytest.mark.parametrize(("inside", "account"), [("f", "idle"), ("c", "checkpoint")])
def test_a_step_that_does_not_end_is_booked_like_audit_does(
    tmp_path: Path, inside: str, account: str
) -> None:
    records = beating(FIRST, 100, inside)
    run, ledger = watched(records), audited(records, tmp_path)
    assert run.booked[account] == pytest.approx(ledger.booked(account), rel=0.02)
    assert sum(run.booked.values()) == pytest.approx(ledger.gpu_seconds, rel=0.02)
    assert run.goodput is not None and run.goodput < 0.3
    watcher = Watcher(WatchOptions())
    watcher.know_booked(run, run.updated)
    again = watched(replace(AGAIN, begins=200_000 * MS).records(), watcher)
    assert account not in again.booked and again.booked["restart"] > 2 * 150


def test_a_watch_that_hears_only_heart_beats_goes_on_from_the_last_step() -> None:
    records = beating(FIRST, 100, "f")
    before = watched(records)
    watcher = Watcher(WatchOptions())
    watcher.know_booked(before, before.updated)
    late = [[rank[0], *(record for record in rank if record["k"] == "b")] for rank in records]
    assert watched(late, watcher).booked == pytest.approx(before.booked, rel=0.01)


def test_nothing_is_booked_twice_or_before_there_is_a_ledger() -> None:
    totals = RunTotals()
    totals.begin_attempt(0, 2, 100.0, 110.0)
    totals.begin_attempt(0, 2, 100.0, 120.0)
    totals.take([], None, 2, 130.0)
    assert totals.booked == {"startup": 20.0} and totals.kept_steps == 0
    totals.begin_attempt(1, 2, 140.0, 160.0)
    assert totals.booked["restart"] == 100.0


def test_a_trainer_of_hugging_face_on_a_gpu_is_judged_by_what_was_done_to_it() -> None:
    """The clean run clips its gradients on the device; the other one tokenises in its process."""
    clean = watch(ranks_of(DATA / "gpu_runs" / "llama-1b"), after=3.0)
    assert clean.rules() == []
    slow = watch(ranks_of(DATA / "gpu_runs" / "llama-1b-tokenising"), after=3.0)
    assert slow.rules() == ["input-stall"]
