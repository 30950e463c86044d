"""The step times of a store as a picture: sealed or not, every step is in exactly one cell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from batch_maker import batches_of
from computeflow.collection.store.journal import JournalWriter
from computeflow.collection.store.sealing_journals import seal_journal
from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.store.store_folder import StoreFolder, open_store
from computeflow.collection.wire.batches import Batch, pack_batch
from computeflow.web.sources.opening import AuditOptions, open_directory
from computeflow.web.sources.store.journal_rows import JournalRows
from computeflow.web.sources.store.step_cells import CellReader, StepCells
from run_folder_maker import MS, Training

pytest.importorskip("duckdb")
SLOW_RANK, SLOW_STEP = 2, 17


def slow(rank: int, step: int) -> Mapping[str, int]:
    return {"f": 400 * MS} if (rank, step) == (SLOW_RANK, SLOW_STEP) else {}


@pytest.fixture
def batches(tmp_path: Path) -> list[Batch]:
    (tmp_path / "run").mkdir()
    return batches_of(Training(ranks=4, steps=40, extra=slow).write(tmp_path / "run"))


def write(store: StoreFolder, number: int, batches: list[Batch]) -> None:
    writer = JournalWriter(store.journal, number)
    writer.append([(1_795_000_000_000_000 + n, pack_batch(b)) for n, b in enumerate(batches)])
    writer.close()


def cells_of(store: StoreFolder, run: str, rows: int, columns: int) -> StepCells | None:
    unsealed = JournalRows(store.journal).steps(run)
    files = [str(path) for path in store.parquet.glob("steps/*/*.parquet")]
    return CellReader(run, rows, columns).read(files, unsealed)


@pytest.mark.parametrize("sealed", [0, 1, 2])
def test_cells_are_the_same_sealed_or_not(
    tmp_path: Path, batches: list[Batch], sealed: int
) -> None:
    store, half = open_store(tmp_path / "store"), len(batches) // 2
    write(store, 1, batches[:half])
    write(store, 2, batches[half:])
    state = StateDatabase(store.state)
    for number in range(1, sealed + 1):
        seal_journal(store, state, number)
    cells = cells_of(store, "run-1", 256, 800)
    assert cells is not None
    assert (cells.ranks, len(cells.steps)) == ((0, 1, 2, 3), 40)
    assert (cells.ranks_per_row, cells.steps_per_column) == (1, 1)
    _, column = np.unravel_index(np.nanargmax(cells.mean), cells.mean.shape)
    assert cells.steps[column] == SLOW_STEP
    assert np.allclose(cells.longest, cells.mean) and not np.isnan(cells.mean).any()
    state.close()


def test_a_reader_that_goes_on_shows_what_a_new_one_shows(
    tmp_path: Path, batches: list[Batch]
) -> None:
    store, half = open_store(tmp_path / "store"), len(batches) // 2
    state, journal = StateDatabase(store.state), JournalRows(store.journal)
    reader = CellReader("run-1", 4, 12)

    def same() -> None:
        files = [str(path) for path in store.parquet.glob("steps/*/*.parquet")]
        cells, new = reader.read(files, journal.steps("run-1")), cells_of(store, "run-1", 4, 12)
        assert cells is not None and new is not None
        assert np.array_equal(cells.longest, new.longest, equal_nan=True)
        assert np.allclose(cells.mean, new.mean, equal_nan=True)
        assert (cells.steps, cells.ranks, cells.attempts) == (new.steps, new.ranks, new.attempts)

    write(store, 1, batches[:half])
    same()
    seal_journal(store, state, 1)
    same()
    write(store, 2, batches[half:])
    same()
    seal_journal(store, state, 2)
    same()
    state.close()


def test_a_small_picture_keeps_the_longest_step(tmp_path: Path, batches: list[Batch]) -> None:
    store = open_store(tmp_path / "store")
    write(store, 1, batches)
    cells = cells_of(store, "run-1", 2, 8)
    assert cells is not None
    assert cells.longest.shape == (2, 8)
    assert (cells.ranks, cells.ranks_per_row, cells.steps_per_column) == ((0, 2), 2, 5)
    assert np.nanmax(cells.longest) == pytest.approx(0.5, abs=0.05)
    assert np.nanmax(cells.mean) < 0.2


def test_a_run_without_steps_has_no_picture(tmp_path: Path, batches: list[Batch]) -> None:
    store = open_store(tmp_path / "store")
    assert cells_of(store, "run-1", 2, 8) is None
    write(store, 1, batches)
    assert cells_of(store, "another'; DROP", 2, 8) is None


def test_one_step_of_a_store_is_that_of_the_run_folder_on_the_device_too() -> None:
    data = Path(__file__).parent / "data"
    store = open_directory(data / "gpu_store", AuditOptions())
    folders = open_directory(data / "gpu_runs", AuditOptions())
    run = next(line.id for line in store.runs() if line.name == "llama-1b")
    for step in (2, 57, 200, 399):
        kept, recorded = store.spans(run, step, 64), folders.spans("llama-1b", step, 64)
        assert kept is not None and recorded is not None
        assert kept.seconds == pytest.approx(recorded.seconds)
        for span, other in zip(kept.ranks[0].spans, recorded.ranks[0].spans, strict=True):
            assert (span.name, span.account, span.detail) == (
                other.name,
                other.account,
                other.detail,
            )
            assert span.start_seconds == pytest.approx(other.start_seconds, abs=2e-6)
            assert span.seconds == pytest.approx(other.seconds, abs=2e-6)
