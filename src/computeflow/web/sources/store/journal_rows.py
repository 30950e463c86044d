"""`JournalRows`: what a collector has taken and not sealed yet, from its journal.

The journal is read as it grows, each frame once, and only what a picture needs is kept: 20 bytes of a
step, and of a node's readings the mean and the largest over its GPUs; a file that is sealed and gone is
forgotten. Phases are many more and rarely asked for: they are read anew. Behind a frame that is damaged
nothing of its file can be told: what is left out is said, file by file.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from computeflow.collection.store.journal import (
    MAGIC,
    is_cut_off,
    journal_numbers,
    journal_path,
    read_frames,
)
from computeflow.collection.store.segment_tables import WORDS, SegmentTables
from computeflow.collection.wire.batches import Batch, unpack_known
from computeflow.errors import InputError
from computeflow.files.names import shown
from computeflow.telemetry.run_folders.arrivals import UNKNOWN
from computeflow.web.sources.reading_curves import OF_READING
from computeflow.web.sources.row_columns import Columns, join_columns

_KINDS = {"rank": np.int32, "attempt": np.int32, "step": np.int64, "seconds": np.float32}
_READ = {"name": object, "node": object, "moment": float, "mean": np.float32, "largest": np.float32}
_WHY_CHARACTERS = 120
_WRITING_SECONDS = 5.0
"""A batch that is being written is whole after so long."""
_PARTS = 64
"""Parts of a run's steps that are joined at a time: small ones take more than their rows."""


@dataclass(slots=True)
class _Rows:
    """Steps of one run in one file, or readings of one node."""

    kinds: Mapping[str, Any]
    joined: list[Columns] = field(default_factory=list)
    loose: list[Columns] = field(default_factory=list)

    def add(self, part: Columns) -> None:
        self.loose.append(part)
        if len(self.loose) >= _PARTS:
            self.joined.append(join_columns(self.loose, self.kinds))
            self.loose = []
        if len(self.joined) >= _PARTS:
            self.joined = [join_columns(self.joined, self.kinds)]


@dataclass(slots=True)
class _File:
    at: int = 0
    left_out: str = ""
    runs: dict[str, _Rows] = field(default_factory=dict)
    nodes: dict[str, _Rows] = field(default_factory=dict)


class JournalRows:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, _File] = {}
        self._unread: dict[int, str] = {}
        """Files whose phases could not be read when they were asked for last, and why."""
        self._lock = threading.Lock()

    def left_out(self) -> list[str]:
        """What of the journal cannot be read, as it was when it was read last."""
        with self._lock:
            notes = self._unread | {
                number: file.left_out for number, file in self._files.items() if file.left_out
            }
            return [notes[number] for number in sorted(notes)]

    def steps(self, run: str) -> list[Columns]:
        """Rank, attempt, step and seconds of a run's steps, in parts, oldest first."""
        with self._lock:
            self._read()
            found = [file.runs[run] for file in self._files.values() if run in file.runs]
            return [part for rows in found for part in (*rows.joined, *rows.loose)]

    def readings(self, nodes: Iterable[str]) -> list[Columns]:
        """Name, node, moment, mean and largest over GPUs of what meters of these nodes read."""
        asked = set(nodes)
        with self._lock:
            self._read()
            found = [
                rows
                for file in self._files.values()
                for node, rows in file.nodes.items()
                if node in asked
            ]
            return [part for rows in found for part in (*rows.joined, *rows.loose)]

    def spans(self, run: str, step: int, around: int) -> dict[str, Columns]:
        """`spans` of one step of a run and of so many around it, `leads` and `collectives` of about
        that time; in Unix microseconds.

        Arrivals come later than their steps: the journal is read for them once more.
        """
        first, last = step - around, step + around
        found = self._tables(run, lambda batch: _has_steps(batch, first - 1, last), first, last)
        if "spans" in found:
            begin, end = int(found["spans"]["start"].min()), int(found["spans"]["start"].max())
            ends = end + round(1e6 * float(found["spans"]["seconds"].max()))
            later = self._tables(run, lambda batch: _has_arrivals(batch, begin, ends))
            found |= {name: rows for name, rows in later.items() if name == "collectives"}
        return found

    def _tables(
        self, run: str, wanted: Callable[[Batch], bool], first: int = 0, last: int = -1
    ) -> dict[str, Columns]:
        """`spans` of these steps, and all `leads` and `collectives`, of the batches that are wanted."""
        gathered, unread = SegmentTables(), dict[int, str]()
        for number in journal_numbers(self._folder):
            path, end = journal_path(self._folder, number), 0
            try:
                for end, batch in _batches(path, 0):  # noqa: B007
                    if batch.run == run and wanted(batch):
                        gathered.take(batch)
            except InputError as error:  # the others have what they have
                unread[number] = _note(path, _why(path, error), end)
        with self._lock:
            self._unread = unread
        tables = gathered.tables()
        texts = np.array([*gathered.words.places, ""], object)
        found = {}
        for table in tables.keys() & {"spans", "leads", "collectives"}:
            columns = tables[table]
            which: Any = slice(None)
            if table == "spans":
                which = (columns["step"] >= first) & (columns["step"] <= last)
            found[table] = {
                name: texts[values[which]]
                if name in WORDS[table]
                else np.ma.filled(values[which], UNKNOWN)
                for name, values in columns.items()
            }
        return {table: rows for table, rows in found.items() if len(next(iter(rows.values())))}

    def _read(self) -> None:
        numbers = journal_numbers(self._folder)
        self._files = {number: self._files.get(number) or _File() for number in numbers}
        for number, file in self._files.items():
            path = journal_path(self._folder, number)
            try:
                for end, batch in _batches(path, file.at):
                    file.at = end
                    _take(file, batch)
                why = _damage(path, file.at)
            except InputError as error:
                why = _why(path, error)
            file.left_out = _note(path, why, file.at) if why else ""


def _take(file: _File, batch: Batch) -> None:
    if batch.run and batch.steps:
        file.runs.setdefault(batch.run, _Rows(_KINDS)).add(_steps_of(batch))
    if batch.readings and (read := _readings_of(batch)):
        file.nodes.setdefault(batch.node, _Rows(_READ)).add(read)


def _damage(path: Path, end: int) -> str:
    """What is wrong behind the last frame; nothing where one may just be written."""
    try:
        stat = path.stat()
    except OSError:
        return "a link to nothing" if path.is_symlink() else ""
    end = max(end, len(MAGIC))
    if stat.st_size <= end:
        return ""
    if not is_cut_off(path, end):
        return "damaged"
    return "cut off" if time.time() - stat.st_mtime >= _WRITING_SECONDS else ""


def _why(path: Path, error: InputError) -> str:
    return shown(str(error).removeprefix(f"{path.name}: "), _WHY_CHARACTERS)


def _note(path: Path, why: str, end: int) -> str:
    try:
        size = path.stat().st_size - end
    except OSError:
        size = 0
    where = f" behind byte {end:,}" if end else ""
    return f"left out: {path.name}: {why}{where}, {size:,} bytes"


def _batches(path: Path, start: int) -> Iterator[tuple[int, Batch]]:
    """Batches of a file from a place on, each with where the next one begins."""
    try:
        with path.open("rb") as opened:
            for frame in read_frames(opened, start):
                yield frame.end, unpack_known(frame.body)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise InputError(f"{path.name}: {error.strerror or error}") from None
        return  # sealed meanwhile: its rows are in Parquet


def _has_steps(batch: Batch, first: int, last: int) -> bool:
    if not batch.steps:
        return False
    number = batch.steps["number"]
    return bool(((number >= first) & (number <= last)).any())


def _has_arrivals(batch: Batch, begin: int, end: int) -> bool:
    if not batch.arrivals:
        return False
    at = batch.arrivals["at"]
    return bool(((at >= begin) & (at <= end)).any())


def _steps_of(batch: Batch) -> Columns:
    counts = [rows.steps for rows in batch.ranks]
    columns: Columns = {
        "rank": np.repeat([rows.rank for rows in batch.ranks], counts),
        "attempt": np.repeat([rows.attempt for rows in batch.ranks], counts),
        "step": batch.steps["number"],
        "seconds": (batch.steps["end"] - batch.steps["begin"]) / 1e6,
    }
    return {name: columns[name].astype(kind) for name, kind in _KINDS.items()}


def _readings_of(batch: Batch) -> Columns:
    """One row for each meter and moment: the GPUs of a node are read at once."""
    found: dict[tuple[str, int], list[float]] = {}
    for reading in batch.readings:
        if reading.name in OF_READING:
            found.setdefault((reading.name, reading.at), []).append(reading.value)
    if not found:
        return {}
    columns: dict[str, list[Any]] = {
        "name": [name for name, _ in found],
        "node": [batch.node] * len(found),
        "moment": [at / 1e6 for _, at in found],
        "mean": [sum(values) / len(values) for values in found.values()],
        "largest": [max(values) for values in found.values()],
    }
    return {name: np.array(columns[name], kind) for name, kind in _READ.items()}
