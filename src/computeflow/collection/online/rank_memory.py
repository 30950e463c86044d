"""What a collector remembers of a run: the last records of every rank, bounded.

Every rank is remembered for `RECENT_SECONDS`; the ranks of the first nodes (`KEPT_RANKS` of them) for
`LONG_SECONDS`, for what is rare: checkpoints, evaluations, slow growth. Records of the others stay in
the bodies of their batches until a look needs them: unpacked they take ten times as much.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from computeflow.collection.wire.batches import (
    PROCESS_GONE,
    Batch,
    RankRows,
    pack_batch,
    rank_part,
    unpack_known,
)
from computeflow.telemetry.run_folders.phases import CHECKPOINT, EVALUATION
from computeflow.telemetry.run_folders.rank_file import RankFile, RankStart, cut, join_parts

KEPT_RANKS = 64
RECENT_SECONDS = 45.0
LONG_SECONDS = 1800.0
_JOINED = 32
"""Parts that are joined to one, so that a long memory has few of them."""
_TAIL = 16
_ALL_ARRIVED = 0.8
"""Share of the usual time from a step's begin to its last collective from which on an arrival is it."""
_KEPT_PAUSES = 64
WARM_STEPS = 3
"""Steps of an attempt that are not looked at: they warm up and compile."""
_KEPT_BYTES = 4 << 20
"""Memory of one rank; the oldest parts go first."""


class RecentRows(NamedTuple):
    """Steps and arrivals of one rank in a batch, as Python's numbers: arrays of one row are slow."""

    numbers: list[int]
    begins: list[int]
    ends: list[int]
    arrivals: list[int]


def _tails(batch: Batch) -> Iterator[RecentRows]:
    """The tails of all ranks of a batch, in their order."""
    columns = [
        batch.steps[name].tolist() if batch.steps else [] for name in ("number", "begin", "end")
    ]
    arrived = batch.arrivals["at"].tolist() if batch.arrivals else []
    step = arrival = 0
    for rows in batch.ranks:
        steps = slice(step, step + rows.steps)
        numbers, begins, ends = (column[steps] for column in columns)
        yield RecentRows(numbers, begins, ends, arrived[arrival : arrival + rows.arrivals])
        step, arrival = step + rows.steps, arrival + rows.arrivals


class PackedPart(NamedTuple):
    """The records of one rank in the body of a batch."""

    last: int
    """Unix microseconds of the last one."""
    body: bytes
    place: int


@dataclass(slots=True)
class RankMemory:
    """The last parts of one rank and attempt."""

    start: RankStart
    node: str
    long: bool
    """Whether it is remembered for long."""
    heard: float
    """Unix seconds at which something last came of it."""
    parts: deque[RankFile | PackedPart] = field(default_factory=deque)
    first_end: int = 0
    """End of the step that ends its warm-up, Unix microseconds; 0 before."""
    step: int = 0
    last: int = 0
    """Its last record, Unix microseconds."""
    step_end: int = 0
    """End of its last step."""
    steps: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_TAIL))
    """Begin and end of its last steps."""
    arrivals: deque[int] = field(default_factory=lambda: deque(maxlen=4 * _TAIL))
    """Its last arrivals at collectives; empty where none are recorded."""
    pauses: dict[int, dict[int, int]] = field(default_factory=dict)
    """By kind: the last steps that had such a pause, with their ends."""
    ended: str | None = None
    alive: bool | None = None
    dropped: int = 0
    inside: str = ""
    """Letter of the phase that its last heart beat came from."""

    def take(self, batch: Batch, body: bytes, place: int, tail: RecentRows, heard: float) -> None:
        rows = batch.ranks[place]
        self.heard, self.last = heard, max(self.last, rows.last)
        self.alive = rows.alive
        if rows.news is not None:
            self.ended = rows.news.ended or self.ended
            self.dropped = max(self.dropped, rows.news.dropped)
            self.inside = rows.news.beats[-1].inside if rows.news.beats else self.inside
        if tail.ends:
            self.step, self.step_end = tail.numbers[-1], tail.ends[-1]
            self.steps.extend(zip(tail.begins, tail.ends, strict=True))
            if not self.first_end and self.step >= WARM_STEPS:
                self.first_end = next(
                    end
                    for number, end in zip(tail.numbers, tail.ends, strict=True)
                    if number >= WARM_STEPS
                )
        self.arrivals.extend(tail.arrivals[-4 * _TAIL :])
        if self.long:
            part = self._part(batch, place)
            self._take_pauses(part)
            self.parts.append(part)
        else:
            self.parts.append(PackedPart(rows.last, body, place))
        self._forget()

    def _take_pauses(self, part: RankFile) -> None:
        for kind in (CHECKPOINT, EVALUATION):
            starts = part.pieces.start[part.pieces.kind == kind]
            rows = np.unique(np.searchsorted(part.steps.end, starts, side="right"))
            for row in rows[rows < len(part.steps)]:
                seen = self.pauses.setdefault(kind, {})
                seen[int(part.steps.number[row])] = int(part.steps.end[row])
                if len(seen) > _KEPT_PAUSES:
                    del seen[next(iter(seen))]

    @property
    def known_end(self) -> int:
        """End of the last step of which all arrivals have come, as far as can be told.

        They come later than their steps: the flight recorder is read now and then.
        """
        if not self.arrivals or not self.steps:
            return self.step_end
        arrived = max(self.arrivals)
        for place in range(len(self.steps) - 1, -1, -1):
            begin, end = self.steps[place]
            if arrived >= end:
                return end
            if place and arrived > begin:
                before, until = self.steps[place - 1]
                usual = max(
                    (at - before for at in self.arrivals if before <= at < until), default=0
                )
                if usual and arrived - begin >= _ALL_ARRIVED * usual:
                    return end
        return arrived  # all that is at hand of its steps came later

    def _part(self, batch: Batch, place: int) -> RankFile:
        key = self.start.rank, self.start.attempt
        return rank_part(batch, place, {key: self.start}).file

    def _unpacked(self, part: PackedPart) -> RankFile:
        return self._part(unpack_known(part.body), part.place)

    def _forget(self) -> None:
        kept = LONG_SECONDS if self.long else RECENT_SECONDS
        while len(self.parts) > 2 and self.last - self.parts[1].last > kept * 1e6:
            self.parts.popleft()
        if self.long and len(self.parts) > 2 * _JOINED:
            self._join()

    def _join(self) -> None:
        """Join the oldest small parts; beyond its bytes, forget the oldest."""
        whole = [part for part in self.parts if isinstance(part, RankFile)]
        large = [part for part in whole if len(part.steps) >= _LARGE]
        small = whole[len(large) :]
        joined = [*large, join_parts(small[:_JOINED]), *small[_JOINED:]]
        while len(joined) > 2 and sum(map(_bytes_of, joined)) > _KEPT_BYTES:
            del joined[0]
        self.parts = deque(joined)

    def window(self, begin: int, end: int) -> RankFile:
        """The steps that ended in a window, as if the process had begun with it."""
        chosen = [part for part in self.parts if part.last > begin] or [self.parts[-1]]
        parts = [part if isinstance(part, RankFile) else self._unpacked(part) for part in chosen]
        file = cut(join_parts(parts), max(begin, self.first_end), end)
        at = int(file.steps.begin[0]) if len(file.steps) else min(begin, self.last)
        return replace(file, start=replace(self.start, epoch=at, began=0))


_LARGE = 256
"""Steps of a part that is not joined again."""


def _bytes_of(part: RankFile) -> int:
    return (
        90 * len(part.steps) + 24 * (len(part.pieces) + len(part.leads)) + 48 * len(part.arrivals)
    )


@dataclass(slots=True)
class RunMemory:
    """All ranks of a run, by rank and attempt; ranks of an attempt before the last are forgotten."""

    run: str
    began: float
    about: dict[str, Any] = field(default_factory=dict)
    ranks: dict[tuple[int, int], RankMemory] = field(default_factory=dict)
    heard: float = 0.0
    nodes: dict[str, float] = field(default_factory=dict)
    """When each node was last heard of."""
    attempt: int = 0
    world: int = 0
    starts: dict[tuple[int, int], RankStart] = field(default_factory=dict)
    """Those that came before this memory began, by rank and attempt."""
    _latest: dict[int, RankMemory] = field(default_factory=dict)
    _kept: int = 0

    def take(self, batch: Batch, heard: float, body: bytes | None = None) -> None:
        """Take a batch; `body` is what it was unpacked from, where it came packed."""
        body = pack_batch(batch) if body is None else body
        self.heard = heard
        self.nodes[batch.node] = heard
        self.about |= batch.about
        for signal in batch.signals:
            if signal.what == PROCESS_GONE and signal.rank in self._latest:
                self._latest[signal.rank].alive = False
        for place, (rows, tail) in enumerate(zip(batch.ranks, _tails(batch), strict=True)):
            memory = self.ranks.get((rows.rank, rows.attempt)) or self._begin(batch, rows, heard)
            if memory is not None:
                memory.take(batch, body, place, tail, heard)

    def _begin(self, batch: Batch, rows: RankRows, heard: float) -> RankMemory | None:
        start = None if rows.news is None else rows.news.start
        start = start or self.starts.get((rows.rank, rows.attempt))
        if start is None:
            return None  # its beginning did not come here: nothing to place it by
        memory = RankMemory(start=start, node=batch.node, long=self._kept < KEPT_RANKS, heard=heard)
        self._kept += memory.long
        self.ranks[rows.rank, rows.attempt] = memory
        if rows.attempt > self.attempt or not self._latest:
            self.attempt, self._latest, self.world = rows.attempt, {}, 0
        if rows.attempt == self.attempt:
            self._latest[rows.rank] = memory
            self.world = max(self.world, start.world)
        return memory

    def latest(self) -> Mapping[int, RankMemory]:
        """Ranks of the last attempt."""
        return self._latest
