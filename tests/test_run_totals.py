"""What a collector has booked of a run when it ends is what `audit` says of its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from computeflow.answers.audits import audit
from computeflow.collection.online.live_values import LiveRun
from computeflow.collection.online.run_totals import RunTotals
from computeflow.collection.online.watcher import Watcher, WatchOptions
from computeflow.recorder.frames import Record
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


def test_a_slow_end_does_not_make_the_steps_before_it_slow() -> None:
    """Goodput is by the median of all steps, not of the last ones."""
    slow = Training(
        ranks=1, steps=300, extra=lambda rank, step: {"d": 120 * MS} if step > 200 else {}
    )
    run = watched(slow.records())
    assert run.goodput is not None and run.goodput < 0.75


def test_a_restart_of_the_watch_goes_on_with_the_books() -> None:
    records = ranks_of(DATA / "run_folders" / "save")
    before = watched([rank[: len(rank) * 2 // 3] for rank in records])
    watcher = Watcher(WatchOptions())
    watcher.know_booked(before, before.updated)
    run, whole = watched(records, watcher), watched(records)
    assert sum(run.booked.values()) == pytest.approx(sum(whole.booked.values()), rel=0.02)
    assert run.booked["checkpoint"] == pytest.approx(whole.booked["checkpoint"], rel=0.1)
    assert run.kept_steps == pytest.approx(whole.kept_steps, abs=3)


def test_nothing_is_booked_twice_or_before_there_is_a_ledger() -> None:
    totals = RunTotals()
    totals.begin_attempt(0, 2, 100.0, 110.0)
    totals.begin_attempt(0, 2, 100.0, 120.0)
    totals.take([], None, 2, 130.0)
    assert totals.booked == {"startup": 20.0} and totals.goodput(2) is None
    totals.begin_attempt(1, 2, 140.0, 160.0)
    assert totals.booked["restart"] == 100.0


def test_a_trainer_of_hugging_face_on_a_gpu_is_judged_by_what_was_done_to_it() -> None:
    """The clean run clips its gradients on the device; the other one tokenises in its process."""
    clean = watch(ranks_of(DATA / "gpu_runs" / "llama-1b"), after=3.0)
    assert clean.rules() == []
    slow = watch(ranks_of(DATA / "gpu_runs" / "llama-1b-tokenising"), after=3.0)
    assert slow.rules() == ["input-stall"]
