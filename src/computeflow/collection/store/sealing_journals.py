"""`seal_journal`: a closed journal file becomes Parquet, is marked in SQLite, and then deleted.

Killed at any point, it is done again: the Parquet of a journal has the journal's number, and a batch
that an earlier journal had is left out by the positions that were marked with that one.
"""

from __future__ import annotations

from pathlib import Path

from computeflow import codec
from computeflow.collection.store.journal import (
    JournalFrame,
    damaged_path,
    journal_numbers,
    journal_path,
    read_frames,
    sync_folder,
)
from computeflow.collection.store.positions import Positions
from computeflow.collection.store.processes import say_line
from computeflow.collection.store.segment_tables import SegmentTables
from computeflow.collection.store.segments import day_of, write_segments
from computeflow.collection.store.state_database import (
    JournalSummary,
    RankPosition,
    StateDatabase,
)
from computeflow.collection.store.store_folder import StoreFolder
from computeflow.collection.wire.batches import unpack_known
from computeflow.errors import InputError


def closed_journals(store: StoreFolder) -> list[int]:
    """Files that the writer has left, oldest first."""
    return journal_numbers(store.journal)[:-1]


def seal_journal(store: StoreFolder, state: StateDatabase, number: int) -> JournalSummary | None:
    """Seal one file; None where that was done before and only its deletion was left."""
    path = journal_path(store.journal, number)
    if state.is_sealed(number):
        delete_journal(path)
        return None
    tables, summary = SegmentTables(), JournalSummary(bytes=path.stat().st_size)
    positions = Positions(load=state.positions, last=state.last_batches())
    first = last = end = 0
    with path.open("rb") as file:
        for frame in read_frames(file):
            first, last, end = first or frame.received, frame.received, frame.end
            _take(frame, number, positions, tables, summary)
    summary.agents = dict(positions.last)
    summary.damaged_bytes = summary.bytes - end if end else 0
    try:
        segments = write_segments(store, tables, number, day_of(first), last) if first else []
    except (InputError, ArithmeticError, ValueError) as error:
        segments, summary.damaged_bytes = [], summary.bytes
        say_line(f"{path.name} cannot be sealed and is kept as it is: {error}")
    state.add_journal(number, summary, segments)
    if summary.damaged_bytes:
        path.rename(damaged_path(path))
    else:
        delete_journal(path)
    return summary


def delete_journal(path: Path) -> None:
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def _take(
    frame: JournalFrame,
    number: int,
    positions: Positions,
    tables: SegmentTables,
    summary: JournalSummary,
) -> None:
    batch = unpack_known(frame.body)
    if positions.judge(batch)[0] == "known":
        summary.repeated += 1
        return
    positions.take(batch, number)
    tables.take(batch)
    summary.batches += 1
    if batch.about and batch.run:
        summary.abouts[batch.run] = summary.abouts.get(batch.run, {}) | batch.about
    for rows in batch.ranks:
        key = (batch.run, rows.rank, rows.attempt)
        start = rows.news.start if rows.news is not None else None
        before = summary.positions.get(key)
        text = before.start if before is not None else None
        if start is not None:
            text = codec.to_json(codec.encode(start), ascii_only=True)
        summary.positions[key] = RankPosition(
            next=rows.first + rows.records, node=batch.node, seen=frame.received, start=text
        )
