"""`StateDatabase`: the small facts of a collector, in SQLite with a write-ahead log.

Several processes write: the keeper what it sealed, the watch its findings, the service silences. Values
that others show (`top`, the page) are JSON of `online.live_values`, field for field.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from computeflow import codec
from computeflow.collection.online.live_values import LiveFinding, LiveNode, LiveRun
from computeflow.errors import InputError, OutputError
from computeflow.units import DAY_SECONDS

VERSION = 1
_RANK_SECONDS = 180 * DAY_SECONDS
"""How long after the rest a rank's position is kept: an agent may still have its file."""
_BUSY_SECONDS = 30.0
_TABLES = """
CREATE TABLE runs (run TEXT PRIMARY KEY, data TEXT NOT NULL, updated REAL NOT NULL);
CREATE TABLE nodes (node TEXT PRIMARY KEY, data TEXT NOT NULL, updated REAL NOT NULL);
CREATE TABLE findings (key TEXT PRIMARY KEY, run TEXT NOT NULL, rule TEXT NOT NULL,
    opened REAL NOT NULL, closed REAL, data TEXT NOT NULL);
CREATE INDEX findings_closed ON findings (closed);
CREATE TABLE silences (id INTEGER PRIMARY KEY, key TEXT NOT NULL, until REAL NOT NULL,
    made REAL NOT NULL, applied INTEGER NOT NULL DEFAULT 0);
CREATE TABLE actions (id INTEGER PRIMARY KEY, at REAL NOT NULL, run TEXT NOT NULL, finding TEXT,
    kind TEXT NOT NULL, state TEXT NOT NULL, data TEXT NOT NULL);
CREATE TABLE ranks (run TEXT NOT NULL, rank INTEGER NOT NULL, attempt INTEGER NOT NULL,
    next INTEGER NOT NULL, node TEXT NOT NULL, start TEXT, seen INTEGER NOT NULL,
    PRIMARY KEY (run, rank, attempt)) WITHOUT ROWID;
CREATE TABLE run_facts (run TEXT PRIMARY KEY, about TEXT NOT NULL, seen INTEGER NOT NULL);
CREATE TABLE agents (agent TEXT NOT NULL, run TEXT NOT NULL, number INTEGER NOT NULL,
    sent INTEGER NOT NULL, PRIMARY KEY (agent, run)) WITHOUT ROWID;
CREATE TABLE journals (number INTEGER PRIMARY KEY, batches INTEGER NOT NULL,
    repeated INTEGER NOT NULL, damaged_bytes INTEGER NOT NULL, bytes INTEGER NOT NULL);
CREATE TABLE segments (path TEXT PRIMARY KEY, name TEXT NOT NULL, day TEXT NOT NULL,
    rows INTEGER NOT NULL, bytes INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
RankKey = tuple[int, int]
"""Rank and attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPosition:
    """How far a rank came, and what its process says of itself, as JSON."""

    next: int
    node: str
    seen: int
    """Unix microseconds at which its last batch came."""
    start: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A sealed Parquet file."""

    path: str
    """Below the collector's own folder."""
    name: str
    """Its table."""
    day: str
    rows: int
    bytes: int
    last: int
    """Unix microseconds at which the last batch in it came."""


@dataclass(slots=True, kw_only=True)
class JournalSummary:
    """What a journal file adds to the state, gathered while it is read."""

    positions: dict[tuple[str, int, int], RankPosition] = field(default_factory=dict)
    abouts: dict[str, dict[str, Any]] = field(default_factory=dict)
    agents: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """Number and time of the last batch of each agent, by run."""
    batches: int = 0
    repeated: int = 0
    """Batches that were there already and are left out."""
    damaged_bytes: int = 0
    bytes: int = 0


class StateDatabase:
    def __init__(
        self,
        path: Path,
        *,
        reading: sqlite3.Connection | None = None,
        busy_seconds: float = _BUSY_SECONDS,
    ) -> None:
        """`reading` is a connection that `read_state` opened; without one it is opened to write."""
        self._path = path
        try:
            self._base = _connection(path, busy_seconds) if reading is None else reading
            version = self._prepare() if reading is None else self._version()
        except sqlite3.Error as error:
            raise OutputError(f"{path}: {error}") from None
        if version not in (0, VERSION):
            raise InputError(f"{path}: version {version}: this one knows {VERSION}")

    def _version(self) -> int:
        (version,) = self._base.execute("PRAGMA user_version").fetchone()
        return int(version)

    def _prepare(self) -> int:
        """Make the tables of a new database; return the version that was there."""
        self._base.execute("PRAGMA journal_mode = WAL")
        self._base.execute("PRAGMA synchronous = FULL")
        with self.transaction():
            version = self._version()
            if version == 0:
                for statement in _TABLES.split(";"):
                    self._base.execute(statement)
                self._base.execute(f"PRAGMA user_version = {VERSION}")
        return version

    def close(self) -> None:
        self._base.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._base.execute("COMMIT")
        except BaseException:
            if self._base.in_transaction:  # SQLite has ended it itself where the disk is full
                self._base.execute("ROLLBACK")
            raise

    @contextmanager
    def explained(self) -> Iterator[None]:
        """What SQLite says (a full disk, a lock, a damaged table) as an error of the user's machine."""
        try:
            yield
        except sqlite3.Error as error:
            raise OutputError(f"{self._path}: {error}") from None

    # How far ranks came

    def positions(self, run: str) -> dict[RankKey, int]:
        rows = self._base.execute(
            "SELECT rank, attempt, next FROM ranks WHERE run = ? AND next > 0", (run,)
        )
        return {(rank, attempt): following for rank, attempt, following in rows}

    def add_places(self, places: Mapping[tuple[str, int, int], tuple[str, int]]) -> None:
        """Note on which nodes ranks are, and when they were heard there in Unix microseconds, by run,
        rank and attempt; how far they came follows with their journal.
        """
        with self.transaction():
            self._base.executemany(
                "INSERT INTO ranks VALUES (?, ?, ?, 0, ?, NULL, ?) ON CONFLICT DO UPDATE SET "
                "node = excluded.node, seen = max(seen, excluded.seen)",
                [(*key, node, seen) for key, (node, seen) in places.items()],
            )

    def last_batches(self) -> dict[tuple[str, str], tuple[int, int]]:
        rows = self._base.execute("SELECT agent, run, number, sent FROM agents")
        return {(agent, run): (number, sent) for agent, run, number, sent in rows}

    def last_journal(self) -> int:
        (number,) = self._base.execute("SELECT max(number) FROM journals").fetchone()
        return number or 0

    def is_sealed(self, number: int) -> bool:
        row = self._base.execute("SELECT 1 FROM journals WHERE number = ?", (number,)).fetchone()
        return row is not None

    def starts(self, run: str) -> list[str]:
        """What the ranks of a run said of themselves, as JSON."""
        rows = self._base.execute(
            "SELECT start FROM ranks WHERE run = ? AND start IS NOT NULL", (run,)
        )
        return [text for (text,) in rows]

    def about(self, run: str) -> dict[str, Any]:
        row = self._base.execute("SELECT about FROM run_facts WHERE run = ?", (run,)).fetchone()
        facts: dict[str, Any] = json.loads(row[0]) if row else {}
        return facts

    def add_journal(
        self, number: int, summary: JournalSummary, segments: Sequence[Segment]
    ) -> None:
        """Take what a sealed journal says, all of it or nothing."""
        with self.transaction():
            self._base.executemany(
                "INSERT INTO ranks VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "next = max(next, excluded.next), node = excluded.node, "
                "start = coalesce(excluded.start, start), seen = max(seen, excluded.seen)",
                [
                    (*key, place.next, place.node, place.start, place.seen)
                    for key, place in summary.positions.items()
                ],
            )
            for run, about in summary.abouts.items():
                known = self.about(run) | about
                seen = max(
                    (p.seen for key, p in summary.positions.items() if key[0] == run), default=0
                )
                self._base.execute(
                    "INSERT OR REPLACE INTO run_facts VALUES (?, ?, ?)",
                    (run, json.dumps(known), seen),
                )
            self._base.executemany(
                "INSERT OR REPLACE INTO agents VALUES (?, ?, ?, ?)",
                [(*key, *last) for key, last in summary.agents.items()],
            )
            self._put_segments(segments)
            self._base.execute(
                "INSERT INTO journals VALUES (?, ?, ?, ?, ?)",
                (number, summary.batches, summary.repeated, summary.damaged_bytes, summary.bytes),
            )

    # Sealed files

    def segments(self) -> list[Segment]:
        """Oldest first."""
        rows = self._base.execute(
            "SELECT path, name, day, rows, bytes, last FROM segments ORDER BY last, path"
        )
        return [
            Segment(path=path, name=name, day=day, rows=count, bytes=size, last=last)
            for path, name, day, count, size, last in rows
        ]

    def replace_segments(self, gone: Iterable[str], made: Sequence[Segment]) -> None:
        with self.transaction():
            self._base.executemany("DELETE FROM segments WHERE path = ?", [(p,) for p in gone])
            self._put_segments(made)

    def _put_segments(self, segments: Sequence[Segment]) -> None:
        self._base.executemany(
            "INSERT OR REPLACE INTO segments VALUES (?, ?, ?, ?, ?, ?)",
            [(s.path, s.name, s.day, s.rows, s.bytes, s.last) for s in segments],
        )

    def count(self, name: str, more: int = 1) -> int:
        """Raise a counter and return it."""
        with self.transaction():
            self._base.execute(
                "INSERT INTO counters VALUES (?, ?) ON CONFLICT DO UPDATE SET value = value + ?",
                (name, more, more),
            )
            (value,) = self._base.execute(
                "SELECT value FROM counters WHERE name = ?", (name,)
            ).fetchone()
        return int(value)

    def counters(self) -> dict[str, int]:
        return dict(self._base.execute("SELECT name, value FROM counters"))

    # What the watch sees

    def open_findings(self) -> list[LiveFinding]:
        return self._findings("closed IS NULL")

    def told_findings(self, since: float) -> list[LiveFinding]:
        """Findings that are open, and those that were closed since then."""
        return self._findings("closed IS NULL OR closed >= ?", since)

    def _findings(self, condition: str, *values: float) -> list[LiveFinding]:
        rows = self._base.execute(
            f"SELECT data FROM findings WHERE {condition} ORDER BY opened", values
        )
        return [codec.decode(LiveFinding, json.loads(data), "finding") for (data,) in rows]

    def has_finding(self, key: str) -> bool:
        row = self._base.execute(
            "SELECT 1 FROM findings WHERE key = ? AND closed IS NULL", (key,)
        ).fetchone()
        return row is not None

    def save_view(
        self,
        findings: Iterable[LiveFinding],
        runs: Iterable[LiveRun] = (),
        nodes: Iterable[LiveNode] = (),
    ) -> None:
        with self.transaction():
            self._base.executemany(
                "INSERT OR REPLACE INTO findings VALUES (?, ?, ?, ?, ?, ?)",
                [(f.key, f.run, f.rule, f.opened, f.closed, _json(f)) for f in findings],
            )
            self._base.executemany(
                "INSERT OR REPLACE INTO runs VALUES (?, ?, ?)",
                [(run.run, _json(run), run.updated) for run in runs],
            )
            self._base.executemany(
                "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?)",
                [(node.node, _json(node), node.last_seen) for node in nodes],
            )

    def run(self, run: str) -> LiveRun | None:
        """A run as the watch last saw it."""
        row = self._base.execute("SELECT data FROM runs WHERE run = ?", (run,)).fetchone()
        return None if row is None else codec.decode(LiveRun, json.loads(row[0]), "run")

    def add_silence(self, key: str, until: float, now: float) -> None:
        """Ask the watch to silence a finding; `InputError` for a key that is not open."""
        with self.transaction():
            if not self.has_finding(key):
                raise InputError(f"no open finding {key[:40]!r}")
            self._base.execute(
                "INSERT INTO silences (key, until, made) VALUES (?, ?, ?)", (key, until, now)
            )

    def new_silences(self) -> list[tuple[int, str, float]]:
        return self._base.execute(
            "SELECT id, key, until FROM silences WHERE applied = 0 ORDER BY id"
        ).fetchall()

    def mark_silences(self, ids: Iterable[int]) -> None:
        with self.transaction():
            self._base.executemany(
                "UPDATE silences SET applied = 1 WHERE id = ?", [(number,) for number in ids]
            )

    # What a controller does

    def add_action(
        self, at: float, run: str, finding: str, kind: str, state: str, data: str
    ) -> int:
        with self.transaction():
            cursor = self._base.execute(
                "INSERT INTO actions (at, run, finding, kind, state, data) VALUES (?, ?, ?, ?, ?, ?)",
                (at, run, finding, kind, state, data),
            )
        return int(cursor.lastrowid or 0)

    def actions(self, only: Sequence[str] = ()) -> list[tuple[int, str, str]]:
        """Number, state and data, the oldest first; all, or those in these states."""
        marks = ", ".join("?" * len(only))
        where = f"WHERE state IN ({marks})" if only else ""
        return self._base.execute(
            f"SELECT id, state, data FROM actions {where} ORDER BY id", tuple(only)
        ).fetchall()

    def change_action(self, number: int, before: str, state: str, data: str) -> bool:
        """Give an action another state; False where it is no longer in the one `before`."""
        with self.transaction():
            changed = self._base.execute(
                "UPDATE actions SET state = ?, data = ? WHERE id = ? AND state = ?",
                (state, data, number, before),
            ).rowcount
        return bool(changed)

    def forget(self, before: float) -> Mapping[str, int]:
        """Drop what was last heard of before that moment; return how many rows by table."""
        conditions = {
            "findings": "closed IS NOT NULL AND closed < ?",
            "runs": "updated < ?",
            "nodes": "updated < ?",
            "silences": "until < ?",
        }
        micros = {"ranks": "seen < ?", "run_facts": "seen < ?"}
        gone = {}
        with self.transaction():
            for table, condition in conditions.items():
                gone[table] = self._delete(table, condition, before)
            for table, condition in micros.items():
                gone[table] = self._delete(table, condition, (before - _RANK_SECONDS) * 1e6)
        return gone

    def _delete(self, table: str, condition: str, moment: float) -> int:
        return self._base.execute(f"DELETE FROM {table} WHERE {condition}", (moment,)).rowcount


def _connection(path: Path, busy_seconds: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode=rwc",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
    )


def _json(value: Any) -> str:
    return json.dumps(codec.encode(value), allow_nan=False)
