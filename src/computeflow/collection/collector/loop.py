"""`WatchLoop`: what the journal gets goes to the watcher; its findings go to SQLite and to sinks.

It reads the journal as it grows, in a process of its own, so that taking batches never waits for a rule
and no queue grows between them. After a restart it gives the watcher the open findings, what ranks said
of themselves, and the journal that is not sealed yet; what was told and closed is not told again.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from computeflow import codec
from computeflow.collection.collector.live_watcher import LiveWatcher
from computeflow.collection.online.live_values import LiveFinding, LiveNode, LiveRun
from computeflow.collection.outputs.sinks import Sink
from computeflow.collection.store.journal import JOURNAL_SECONDS, JournalFollower
from computeflow.collection.store.processes import say_line
from computeflow.collection.store.state_database import RankKey, StateDatabase
from computeflow.collection.store.store_folder import StoreFolder
from computeflow.collection.wire.batches import Batch, unpack_known
from computeflow.errors import ComputeFlowError
from computeflow.telemetry.run_folders.rank_file import RankStart

_FRAMES = 512
"""Batches that are read between two looks at the clock."""
_NODES_SECONDS = 5.0
_SAID_SECONDS = 60.0
_TOLD_SECONDS = 2 * JOURNAL_SECONDS
"""A finding that was closed so long ago is not in the journal that is read again after a restart."""
MakeWatcher = Callable[[Sequence[LiveFinding]], LiveWatcher]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """What is known of all runs at one moment."""

    at: float
    runs: tuple[LiveRun, ...] = ()
    findings: tuple[LiveFinding, ...] = ()
    nodes: tuple[LiveNode, ...] = ()
    batches: int = 0
    tick_seconds: float = 0.0
    skipped_files: int = 0
    """Journal files that were sealed before they could be watched."""
    failures: int = 0
    sent: dict[str, float] = field(default_factory=dict)
    """What went out to Alertmanager, a webhook or a metrics server, and what was dropped."""


class WatchLoop:
    def __init__(
        self, store: StoreFolder, make_watcher: MakeWatcher, sinks: Sequence[Sink] = ()
    ) -> None:
        self._state = StateDatabase(store.state)
        self._follower = JournalFollower(store.journal)
        self._follower.look()  # before the keeper seals and deletes them
        self.watcher = make_watcher(self._state.told_findings(time.time() - _TOLD_SECONDS))
        self.sinks = list(sinks)
        self._batches = self._failures = 0
        self._nodes_saved = self._said = float("-inf")
        self._places: dict[str, dict[RankKey, str]] = {}
        """Nodes of ranks that were noted, by run."""
        self._moved: dict[tuple[str, int, int], tuple[str, int]] = {}
        """Those that are to be noted, with when they were heard there."""

    def read(self) -> int:
        """Give the watcher what has come since; return how many batches, a bounded number."""
        frames = self._follower.read(_FRAMES)
        for frame in frames:
            self._take(unpack_known(frame.body), frame.received / 1e6, frame.body)
        self._batches += len(frames)
        return len(frames)

    def tick(self, now: float) -> LiveView:
        """Let the watcher judge, keep what it found and pass it on."""
        self._silence()
        changes = self.watcher.tick(now)
        runs, nodes = self.watcher.runs(), self.watcher.nodes(now)
        due = now - self._nodes_saved >= _NODES_SECONDS or now < self._nodes_saved
        try:
            self._state.save_view(
                (*changes.opened, *changes.updated, *changes.closed), runs, nodes if due else ()
            )
            self._nodes_saved = now if due else self._nodes_saved
            if self._moved:
                self._state.add_places(self._moved)
                self._moved = {}
            for run in [run for run in self._places if not self.watcher.knows(run)]:
                del self._places[run]
        except sqlite3.Error as error:  # a full disk: the next tick has what changed since, too
            self._fail(f"findings are not kept: {error}", now)
        for sink in self.sinks:
            try:
                sink.publish(changes, runs)
            except Exception as error:  # a sink of ours or of others must not end the watch
                self._fail(f"{type(sink).__name__}: {error}", now)
        return LiveView(
            at=now,
            runs=runs,
            findings=self.watcher.findings(),
            nodes=nodes,
            batches=self._batches,
            skipped_files=self._follower.skipped,
            failures=self._failures,
            sent={name: count for sink in self.sinks for name, count in sink.counts().items()},
        )

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()
        self._follower.close()
        self._state.close()

    def _take(self, batch: Batch, received: float, body: bytes) -> None:
        try:
            if batch.run and not self.watcher.knows(batch.run):
                batch = self._introduce(batch, received)
            self.watcher.take(batch, received, body)
            self._place(batch, received)
        except Exception as error:  # one batch of a stranger must not end the watch of all
            self._fail(f"a batch of {batch.node} is not watched: {error!r}", received)

    def _place(self, batch: Batch, received: float) -> None:
        """Remember ranks that are new, or on another node than before."""
        known = self._places.setdefault(batch.run, {}) if batch.ranks else {}
        for rows in batch.ranks:
            if known.get((rows.rank, rows.attempt)) != batch.node:
                known[rows.rank, rows.attempt] = batch.node
                key = batch.run, rows.rank, rows.attempt
                self._moved[key] = batch.node, round(received * 1e6)

    def _introduce(self, batch: Batch, received: float) -> Batch:
        """Tell the watcher what is known of a run: starts of ranks, books, its facts."""
        for text in self._state.starts(batch.run):
            start = codec.decode(RankStart, json.loads(text), "state.sqlite")
            self.watcher.know(batch.run, start, received)
        before = self._state.run(batch.run)
        if before is not None:
            self.watcher.know_booked(before, received)
        return replace(batch, about=self._state.about(batch.run) | batch.about)

    def _silence(self) -> None:
        try:
            silences = self._state.new_silences()
            for _, key, until in silences:
                try:
                    self.watcher.silence(key, until)
                except ComputeFlowError:
                    continue  # closed meanwhile
            if silences:
                self._state.mark_silences(number for number, _, _ in silences)
        except sqlite3.Error as error:
            self._fail(f"silences are not read: {error}", self._said + _SAID_SECONDS)

    def _fail(self, text: str, now: float) -> None:
        self._failures += 1
        if not self._said <= now < self._said + _SAID_SECONDS:
            self._said = now
            say_line(text[:300])
