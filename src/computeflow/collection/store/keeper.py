"""`Keeper`: seals closed journals, merges small segments and deletes what is too old or too much.

It is a process of its own beside the service (`python -m computeflow.collection.store.keeper`), so that
taking batches never waits for it; journals and SQLite are all that they share.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from computeflow import codec
from computeflow.collection.store.processes import parent_gone, say_line
from computeflow.collection.store.sealing_journals import closed_journals, seal_journal
from computeflow.collection.store.segments import (
    MERGED,
    found_segments,
    mend,
    merge_day,
    remove_segment,
)
from computeflow.collection.store.state_database import Segment, StateDatabase
from computeflow.collection.store.store_folder import StoreFolder, lock_store, open_store
from computeflow.errors import ComputeFlowError
from computeflow.units import DAY_SECONDS

_LOOK_SECONDS = 0.5
_TIDY_SECONDS = 30.0
_LOCK_SECONDS = 600.0
_JUMP_SECONDS = 300.0
"""A wall clock that moved so far against the one that only counts was set."""
_TRUST_SECONDS = DAY_SECONDS
"""How long a clock must not be set before ages count: a start may be with a wrong one, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepOptions:
    store: str
    shared: str | None = None
    keep_seconds: float = 30 * DAY_SECONDS
    keep_bytes: float | None = None
    merge_files: int = 16
    """Small files of a day and table that are made one."""
    small_bytes: int = 32 << 20
    merged_bytes: int = 128 << 20
    """Most that is merged at once: 400 MB, 44 million rows, took 4 GB of disk to be sorted."""


class Keeper:
    def __init__(
        self,
        store: StoreFolder,
        options: KeepOptions,
        clocks: tuple[Callable[[], float], Callable[[], float]] = (time.time, time.monotonic),
    ) -> None:
        self._store, self._options = store, options
        self._state = StateDatabase(store.state)
        self._wall, self._steady = clocks
        self._offset = self._wall() - self._steady()
        self._trusted = self._steady()
        mend(store)
        known = {segment.path: segment for segment in self._state.segments()}
        there = found_segments(store, known, self._state.last_journal())
        gone = known.keys() - {segment.path for segment in there}
        self._state.replace_segments(gone, [s for s in there if s.path not in known])

    def seal(self, is_over: Callable[[], bool] = lambda: False) -> int:
        """Seal all journals that the writer has left, until it is over; return how many."""
        sealed = 0
        for number in closed_journals(self._store):
            if is_over():
                break
            seal_journal(self._store, self._state, number)
            sealed += 1
        return sealed

    def merge(self, is_over: Callable[[], bool] = lambda: False) -> int:
        """Merge small files, of finished days all of them; return how many were merged."""
        groups: dict[tuple[str, str], list[Segment]] = {}
        for segment in self._state.segments():
            groups.setdefault((segment.name, segment.day), []).append(segment)
        today = time.strftime("%Y%m%d", time.gmtime(self._wall()))
        merged = 0
        for (name, day), segments in groups.items():
            parts = self._small(segments)
            if is_over():
                break
            if len(parts) < (2 if day < today else self._options.merge_files):
                continue
            kept = [segment for segment in segments if segment not in parts]
            number = MERGED + self._state.count("merged files")
            made = merge_day(self._store, name, day, parts, kept, number)
            self._state.replace_segments([part.path for part in parts], [made])
            merged += len(parts)
        return merged

    def _small(self, segments: Sequence[Segment]) -> list[Segment]:
        """Small files, as many as are merged at once."""
        chosen, total = list[Segment](), 0
        for segment in segments:
            if segment.bytes < self._options.small_bytes:
                total += segment.bytes
                if total > self._options.merged_bytes:
                    break
                chosen.append(segment)
        return chosen

    def retain(self) -> list[Segment]:
        """Delete what is older or more than is kept, oldest first; return what was deleted."""
        options, segments = self._options, self._state.segments()
        gone: list[Segment] = []
        if self._trusts_clock():
            oldest = self._wall() - options.keep_seconds
            gone = [segment for segment in segments if segment.last < oldest * 1e6]
            self._state.forget(oldest)
        if options.keep_bytes is not None:
            left = [segment for segment in segments if segment not in gone]
            total = sum(segment.bytes for segment in left)
            for segment in left:
                if total <= options.keep_bytes:
                    break
                total -= segment.bytes
                gone.append(segment)
        for segment in gone:
            remove_segment(self._store, segment)
        if gone:
            self._state.replace_segments([segment.path for segment in gone], [])
            self._state.count("deleted files", len(gone))
            self._state.count("deleted rows", sum(segment.rows for segment in gone))
            self._state.count("deleted bytes", sum(segment.bytes for segment in gone))
        return gone

    def _trusts_clock(self) -> bool:
        offset = self._wall() - self._steady()
        if abs(offset - self._offset) > _JUMP_SECONDS:
            self._trusted = self._steady()
        self._offset = offset
        needed = min(_TRUST_SECONDS, self._options.keep_seconds)
        return self._steady() - self._trusted >= needed

    def close(self) -> None:
        self._state.close()


def run_keeper(options: KeepOptions, is_over: Callable[[], bool]) -> None:
    """Keep a store in order until it is over; what fails is said and tried again."""
    store = open_store(Path(options.store), Path(options.shared) if options.shared else None)
    with lock_store(store, "keeper", wait_seconds=_LOCK_SECONDS):
        keeper = Keeper(store, options)
        tidied = said = -_TIDY_SECONDS
        while not is_over():
            try:
                keeper.seal(is_over)
                if time.monotonic() - tidied >= _TIDY_SECONDS:
                    tidied = time.monotonic()
                    keeper.merge(is_over)
                    for segment in keeper.retain():
                        say_line(f"deleted {segment.path}: {segment.rows:,} rows, by --keep")
            except (ComputeFlowError, OSError, sqlite3.Error) as error:
                if time.monotonic() - said >= _TIDY_SECONDS:  # a full disk stays full for a while
                    said = time.monotonic()
                    say_line(f"sealing waits: {error}")
            time.sleep(_LOOK_SECONDS)
        keeper.close()


def main() -> int:
    options = codec.decode(KeepOptions, codec.from_json(sys.argv[1], "keeper"), "keeper")
    run_keeper(options, parent_gone())
    return 0


if __name__ == "__main__":
    sys.exit(main())
