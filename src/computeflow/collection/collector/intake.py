"""`Intake`: new batches go to the journal, many with one sync, and are acknowledged after it.

Batches wait in memory up to a limit; beyond it, or with a disk that is nearly full, they are refused,
and their sender still has them. A batch that is there already waits for the sync, too: what it repeats
may not be on the disk yet.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from computeflow.collection.collector.clients import RefusedError
from computeflow.collection.store.journal import JOURNAL_BYTES, JOURNAL_SECONDS, JournalWriter
from computeflow.collection.store.positions import Positions, Verdict
from computeflow.collection.store.store_folder import StoreFolder
from computeflow.collection.wire.batches import Batch

GROUP_SECONDS = 0.05
"""Time from one sync to the next while batches come; one that comes alone is synced at once."""
_IDLE_SECONDS = 1.0
_RESERVE_BYTES = 128 << 20
_RESERVE_SHARE = 0.05
"""Room that is left on the disk for sealing, which makes room: the smaller of both."""
_RETRY_SECONDS = 2.0
_MAX_UNSEALED = 48
"""Files that wait to be sealed: beyond them the disk would fill with what nobody can ask for, and who
watches would lose its place (`JournalFollower` follows 64).
"""


@dataclass(slots=True, eq=False)
class Ticket:
    """One batch on its way to the disk; `batch` is None where it is only waited for the sync."""

    batch: Batch | None
    body: bytes
    received: int
    done: asyncio.Future[None] | threading.Event
    error: RefusedError | None = None


@dataclass(slots=True)
class IntakeCounts:
    batches: int = 0
    known: int = 0
    refused: int = 0
    records: int = 0
    bytes: int = 0
    syncs: int = 0
    queue_bytes: int = 0
    failed_syncs: int = 0


@dataclass(slots=True)
class _Queue:
    tickets: list[Ticket] = field(default_factory=list)
    bytes: int = 0


class Intake:
    def __init__(
        self,
        store: StoreFolder,
        positions: Positions,
        first_journal: int,
        *,
        queue_bytes: int,
        journal_bytes: int = JOURNAL_BYTES,
        journal_seconds: float = JOURNAL_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.positions = positions
        self.counts = IntakeCounts()
        self._store, self._clock, self._most = store, clock, queue_bytes
        self._journal = (journal_bytes, journal_seconds)
        self._writer = JournalWriter(store.journal, first_journal)
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._queue = _Queue()
        self._stopping = False
        self._is_full = False
        self._sealed = first_journal - 1
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def start(self) -> None:
        with suppress(OSError):  # a full disk: the first batch tries again
            self._writer.open()
        self._thread.start()

    def stop(self) -> None:
        """Bring what waits to the disk, and end."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()
        self._writer.close()

    def submit(
        self,
        batch: Batch,
        body: bytes,
        done: asyncio.Future[None] | threading.Event,
        count: Callable[[int], None] | None = None,
    ) -> tuple[Verdict, Ticket | None]:
        """Take a batch that is new; answer when its ticket is done (None: at once).

        One that leaves a gap or overlaps is refused: answer with `next_of`, also after the ticket.
        `count` is told how many of its ranks are new, and may refuse them.
        """
        with self._lock:
            verdict, new_ranks = self.positions.judge(batch)
            if verdict != "new":
                self.counts.known += verdict == "known"
                self.counts.refused += verdict == "refused"
                return verdict, self._barrier(done)
            self._check_room(len(body))
            if count is not None and batch.ranks:
                count(new_ranks)
            # a file that is full may be left before this batch is written
            self.positions.take(batch, self._writer.number + 1)
            ticket = Ticket(batch, body, int(self._clock() * 1e6), done)
            self._put(ticket)
            return "new", ticket

    def barrier(self, done: asyncio.Future[None] | threading.Event) -> Ticket | None:
        """A ticket for all that was taken so far; None where it is on the disk."""
        with self._lock:
            return self._barrier(done)

    def _barrier(self, done: asyncio.Future[None] | threading.Event) -> Ticket | None:
        if not self.counts.queue_bytes:
            return None
        ticket = Ticket(None, b"", 0, done)
        self._put(ticket)
        return ticket

    def _put(self, ticket: Ticket) -> None:
        self._queue.tickets.append(ticket)
        self.counts.queue_bytes += len(ticket.body)
        self._wake.notify()

    def check_room(self, size: int) -> None:
        """Refuse a body that is about to be read where there is no room for it."""
        with self._lock:
            self._check_room(size)

    def _check_room(self, size: int) -> None:
        if self._stopping:
            raise RefusedError(503, "the collector is stopping", _RETRY_SECONDS)
        if self._is_full:
            raise RefusedError(503, "the collector's disk is full", _RETRY_SECONDS)
        if self._writer.number - self._sealed > _MAX_UNSEALED:
            self.counts.refused += 1
            raise RefusedError(503, "the collector is behind with sealing", _RETRY_SECONDS)
        if self.counts.queue_bytes + size > self._most:
            self.counts.refused += 1
            raise RefusedError(503, "the collector is behind with its disk", 1.0)

    def next_of(self, batch: Batch) -> dict[str, int]:
        with self._lock:
            return self.positions.next_of(batch)

    def next_of_run(self, run: str) -> dict[str, int]:
        with self._lock:
            known = self.positions.of(run)
            return {f"{rank}.{attempt}": number for (rank, attempt), number in known.items()}

    def forget_sealed(self, sealed: int) -> None:
        with self._lock:
            self._sealed = sealed
            if not self.counts.queue_bytes:
                self.positions.forget(sealed)

    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._queue.tickets and not self._stopping:
                    self._wake.wait(_IDLE_SECONDS)
                tickets, self._queue.tickets = self._queue.tickets, []
                if not tickets and self._stopping:
                    return
            began = time.monotonic()
            self._is_full = self._has_no_room()
            if tickets:
                self._commit(tickets)
            if self._writer.is_due(*self._journal):
                with self._lock:
                    self._writer.roll()
            if tickets and not self._stopping:
                time.sleep(max(GROUP_SECONDS - (time.monotonic() - began), 0.0))

    def _has_no_room(self) -> bool:
        try:
            disk = os.statvfs(self._store.journal)
        except OSError:
            return True
        free = disk.f_bavail * disk.f_frsize
        return free < min(_RESERVE_BYTES, _RESERVE_SHARE * disk.f_blocks * disk.f_frsize)

    def _commit(self, tickets: list[Ticket]) -> None:
        new = [(ticket, ticket.batch) for ticket in tickets if ticket.batch is not None]
        frames = [(ticket.received, ticket.body) for ticket, _ in new]
        records = sum(rows.records for _, batch in new for rows in batch.ranks)
        error = None
        try:
            if frames:
                self._writer.append(frames, records)
        except OSError as failure:
            text = f"the collector cannot write: {failure.strerror or failure}"
            error = RefusedError(503, text, _RETRY_SECONDS)
        with self._lock:
            if error is not None:
                tickets += self._queue.tickets  # they build on what failed
                self._queue.tickets = []
                self.positions.take_back([t.batch for t in reversed(tickets) if t.batch])
                self.counts.failed_syncs += 1
            self.counts.queue_bytes -= sum(len(ticket.body) for ticket in tickets)
            if error is None:
                self._count(frames, records)
        _finish(tickets, error)

    def _count(self, frames: Sequence[tuple[int, bytes]], records: int) -> None:
        counts = self.counts
        counts.syncs += bool(frames)
        counts.batches += len(frames)
        counts.bytes += sum(len(body) for _, body in frames)
        counts.records += records


def _finish(tickets: Sequence[Ticket], error: RefusedError | None) -> None:
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for ticket in tickets:
        ticket.error = error
        if isinstance(ticket.done, threading.Event):
            ticket.done.set()
        else:
            loops.setdefault(ticket.done.get_loop(), []).append(ticket.done)
    for loop, futures in loops.items():
        loop.call_soon_threadsafe(_resolve, futures)


def _resolve(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():  # a client that has gone cancels
            future.set_result(None)
