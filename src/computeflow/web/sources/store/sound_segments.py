"""`SoundSegments`: the sealed files of a store's tables, without those that cannot be read.

They are found where a question fails: it is asked again where files were merged or removed meanwhile;
else every file of its tables is read once, and it is asked again of those that can be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from computeflow.collection.store.segment_tables import SCHEMAS
from computeflow.errors import InputError
from computeflow.files.names import shown
from computeflow.files.parquet import parquet_engine
from computeflow.web.sources.remembered import GONE, file_stamp

T = TypeVar("T")
_WHY_CHARACTERS = 120
MAX_NOTES = 20
_TRIES = 3
"""So often a question is asked anew where files are merged or removed meanwhile."""


class SoundSegments:
    def __init__(self, store: Path) -> None:
        self._store = store
        self._damaged: dict[str, tuple[tuple[int, int], str]] = {}
        """The stamp of such a file when it was read, and what is wrong with it."""
        self._lock = threading.Lock()

    def files(self, table: str) -> list[str]:
        """Paths of those that can be read, in order."""
        return [path for path in self._paths(table) if not self._why(path)]

    def left_out(self, *tables: str) -> list[str]:
        return [
            f"left out: {shown(str(Path(path).relative_to(self._store)))}: {why}"
            for table in tables
            for path in self._paths(table)
            if (why := self._why(path))
        ][:MAX_NOTES]

    def ask(self, tables: tuple[str, ...], question: Callable[[], T]) -> T:
        """The answer; where it fails, that of the files which are there now and not damaged."""
        for _ in range(_TRIES):
            asked = self._all_files(tables)
            try:
                return question()
            except InputError:
                if self._all_files(tables) == asked and not self._find_damaged(tables):
                    raise
        return question()

    def _all_files(self, tables: tuple[str, ...]) -> list[str]:
        return [path for table in tables for path in self.files(table)]

    def _paths(self, table: str) -> list[str]:
        return sorted(map(str, self._store.glob(f"parquet/*/{table}/*/segment-*.parquet")))

    def _why(self, path: str) -> str:
        """What is wrong with a file, as far as that is known; one that was written anew is tried."""
        if path not in self._damaged:
            return ""
        stamp, why = self._damaged[path]
        return why if stamp == file_stamp(path) else ""

    def _find_damaged(self, tables: tuple[str, ...]) -> bool:
        """Whether files were found that cannot be read."""
        with self._lock:
            found = [self._read_through(table) for table in tables]
        return any(found)

    def _read_through(self, table: str) -> bool:
        """Read every row of every file; return whether one cannot be read that was asked."""
        found = False
        with parquet_engine("reading a store", threads=2) as (engine, engine_error):
            for path in self.files(table):
                stamp = file_stamp(path)
                try:
                    why = _check(engine, path, table)
                except engine_error as error:
                    why = shown(str(error).splitlines()[0], _WHY_CHARACTERS)
                if why and stamp != GONE:  # merged meanwhile, it is not damaged
                    self._damaged[path] = stamp, f"{why}, {stamp[0]:,} bytes"
                    found = True
        return found


def _check(engine: Any, path: str, table: str) -> str:
    rows = engine.execute("DESCRIBE SELECT * FROM read_parquet(?)", [path]).fetchall()
    there = {f"{name} {kind}" for name, kind, *_ in rows}
    missing = [each for each in SCHEMAS[table].split(", ") if each not in there]
    if missing:
        return f"without {missing[0]}"
    engine.execute("SELECT max(hash(t)) FROM read_parquet(?) t", [path]).fetchall()
    return ""
