"""`JournalRows`: steps and phases that a collector has taken and not sealed yet, from its journal.

The journal is read as it grows, each frame once; a file that is sealed and gone is forgotten.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from computeflow.collection.store.journal import journal_numbers, journal_path, read_frames
from computeflow.collection.store.segment_tables import WORDS, Columns, SegmentTables
from computeflow.collection.wire.batches import unpack_known

_TABLES = ("steps", "spans")
_FRAMES = 2_048
"""Frames whose rows are joined at a time."""


@dataclass(slots=True)
class _Part:
    """Rows of some frames, with their own list of words."""

    words: dict[str, int]
    tables: dict[str, Columns]

    def rows(self, table: str, run: str) -> Columns | None:
        columns = self.tables.get(table)
        number = self.words.get(run)
        if columns is None or number is None:
            return None
        kept = columns["run"] == number
        texts = np.array([*self.words, ""], object)
        return {
            name: texts[values[kept]] if name in WORDS[table] else values[kept]
            for name, values in columns.items()
        }


@dataclass(slots=True)
class _File:
    at: int = 0
    parts: list[_Part] = field(default_factory=list)


class JournalRows:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, _File] = {}
        self._lock = threading.Lock()

    def rows(self, table: str, run: str) -> list[Columns]:
        """Columns of a run's rows in parts, oldest first; moments are Unix microseconds."""
        with self._lock:
            self._read()
            parts = [part for file in self._files.values() for part in file.parts]
        return [rows for part in parts if (rows := part.rows(table, run)) is not None]

    def _read(self) -> None:
        numbers = journal_numbers(self._folder)
        self._files = {number: self._files.get(number) or _File() for number in numbers}
        for number, file in self._files.items():
            try:
                with journal_path(self._folder, number).open("rb") as opened:
                    self._read_file(opened, file)
            except FileNotFoundError:  # sealed meanwhile: its rows are in Parquet
                continue

    def _read_file(self, opened: Any, file: _File) -> None:
        gathered, count = SegmentTables(), 0
        for frame in read_frames(opened, file.at):
            gathered.take(unpack_known(frame.body))
            file.at, count = frame.end, count + 1
            if count >= _FRAMES:
                file.parts.append(_part(gathered))
                gathered, count = SegmentTables(), 0
        if count:
            file.parts.append(_part(gathered))


def _part(gathered: SegmentTables) -> _Part:
    tables = gathered.tables()
    kept = {name: tables[name] for name in _TABLES if name in tables}
    return _Part(words=gathered.words.places, tables=kept)
