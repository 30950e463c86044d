"""Packed bodies of a large fleet, fast: `FleetBodies`.

One batch of a node is packed once with marks where values change; the bodies of all nodes are then one
table of bytes, a row for each node, into which the values of a step are copied column by column. Only
the compression is done node by node. All ranks do the same steps, so all bodies have one length.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.live_fleet import BUCKETS, SHARES, TRANSFER
from benchmarks.step_noise import PHASES, StepNoise, draw
from computeflow import codec
from computeflow.collection.wire.batches import MAGIC, Batch, RankNews, RankRows, pack_batch
from computeflow.telemetry.run_folders.phases import (
    BACKWARD,
    DATA,
    EDGE,
    FORWARD,
    OPTIMIZER,
    gap_kinds,
)
from computeflow.telemetry.run_folders.rank_file import RankStart

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
_MARK = 1 << 44
"""Numbers from here on are marks; MessagePack writes each in nine bytes, as it may any number."""
_TEMPLATES = 32
"""Steps of noise that are made ahead and used in turn."""
_EPOCH_SECONDS = 10.0
_EDGE, _INPUT, _FWD, _MIDDLE, _BWD, _AFTER, _OPT = range(7)
_PIECES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A rank that computes `factor` times as long from one step up to another."""

    rank: int
    begin: int
    end: int
    factor: float = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTimes:
    """One call's steps: ranks x steps, and x pieces or buckets; Unix microseconds."""

    first: int
    begin: Ints
    end: Ints
    lengths: Ints
    arrivals: Ints

    @property
    def over(self) -> int:
        """When the last rank has ended the last of these steps."""
        return int(self.end[:, -1].max())


class FleetBodies:
    """Bodies of a run, call after call; `ranks_per_body` of them share one agent."""

    def __init__(
        self,
        ranks: int,
        *,
        run: str,
        start: float,
        noise: StepNoise,
        plants: tuple[Plant, ...] = (),
        ranks_per_body: int = 8,
        steps_per_body: int = 1,
        step_seconds: float = 1.0,
        seed: int = 0,
    ) -> None:
        if ranks % ranks_per_body:
            raise ValueError(f"{ranks} ranks are not a multiple of {ranks_per_body}")
        self.ranks, self.run, self.plants = ranks, run, plants
        self.bodies_per_call = ranks // ranks_per_body
        self._group, self._steps = ranks_per_body, steps_per_body
        self._usual = round(step_seconds * 1e6)
        self._epoch = round(start * 1e6)
        random = np.random.default_rng(seed)
        deviation = draw(noise, ranks, _TEMPLATES, 1.0, random)
        share = np.array([SHARES[name] for name in PHASES])
        own = np.maximum(share + deviation, 0.2 * share) * self._usual
        self._own = _pieces_of(own)
        self._now = np.full(ranks, self._epoch, np.int64)
        self._call = self._sent_steps = 0
        self._table, self._places = self._marked()

    @property
    def records_per_rank(self) -> int:
        """Records sent so far, that of the start included."""
        return 1 + 2 * self._sent_steps

    def go_on(self, start: float, steps_per_body: int) -> None:
        """Begin the next step then, and send so many at once from now on."""
        self._now[:] = round(start * 1e6)
        self._steps = steps_per_body
        self._table, self._places = self._marked()

    def opening(self) -> list[bytes]:
        """The first batch of each node: the starts of its ranks."""
        return [pack_batch(self._opening(node)) for node in range(self.bodies_per_call)]

    def _opening(self, node: int) -> Batch:
        rows = tuple(
            RankRows(
                rank=rank,
                attempt=0,
                first=0,
                records=1,
                last=self._epoch,
                alive=True,
                news=RankNews(start=self._start(rank, node)),
            )
            for rank in range(node * self._group, (node + 1) * self._group)
        )
        name = f"node{node:05d}"
        return Batch(
            agent=f"agent-{name}",
            number=0,
            node=name,
            sent=self._epoch,
            run=self.run,
            about={"name": self.run, "command": "made"},
            ranks=rows,
        )

    def _start(self, rank: int, node: int) -> RankStart:
        return RankStart(
            rank=rank,
            world=self.ranks,
            attempt=0,
            host=f"node{node:05d}",
            device="cpu",
            gpu="",
            gpu_uuid="",
            framework={},
            versions={"torch": "2.11"},
            epoch=self._epoch,
            began=-round(_EPOCH_SECONDS * 1e6),
        )

    def times(self) -> FleetTimes:
        """The next steps; each ends for all ranks when the last one has come."""
        first = self._sent_steps
        steps = np.arange(first, first + self._steps)
        lengths = self._own[:, steps % _TEMPLATES].copy()
        for plant in self.plants:
            rows = (steps >= plant.begin) & (steps < plant.end)
            for piece in (_FWD, _BWD):
                lengths[plant.rank, rows, piece] = lengths[plant.rank, rows, piece] * plant.factor
        begin, end = np.empty(lengths.shape[:2], np.int64), np.empty(lengths.shape[:2], np.int64)
        work = lengths[:, :, _BWD].copy()
        before = lengths[:, :, :_BWD].sum(axis=2)
        after = lengths[:, :, _AFTER:].sum(axis=2)
        transfer = max(round(TRANSFER * self._usual), 1)
        for place in range(self._steps):
            begin[:, place] = self._now
            came = self._now + before[:, place]
            until = int((came + work[:, place]).max()) + transfer
            lengths[:, place, _BWD] = until - came
            self._now = until + after[:, place]
            end[:, place] = self._now
        parts = np.arange(1, BUCKETS + 1)
        arrivals = (begin + before)[:, :, None] + work[:, :, None] * parts // BUCKETS
        return FleetTimes(first=first, begin=begin, end=end, lengths=lengths, arrivals=arrivals)

    def bodies(self, times: FleetTimes, sent: float) -> Iterator[bytes]:
        """Bodies of the nodes, in order; `sent` in Unix seconds."""
        count, steps = self.ranks, np.arange(times.first, times.first + self._steps)
        number = np.broadcast_to(steps + 1, times.begin.shape)
        sequence = (steps[:, None] * BUCKETS + np.arange(BUCKETS)).ravel()
        self._number("number", np.full(self.bodies_per_call, self._call + 1))
        self._number("sent", np.full(self.bodies_per_call, round(sent * 1e6)))
        self._number("first", np.full(count, self.records_per_rank))
        self._number("last", times.end[:, -1])
        self._column("steps.number", number)
        self._column("steps.own", number)
        self._column("steps.begin", times.begin)
        self._column("steps.end", times.end)
        self._column("steps.loss", 10.0 / number)
        self._column("pieces.length", times.lengths)
        self._column("arrivals.sequence", np.broadcast_to(sequence, (count, len(sequence))))
        self._column("arrivals.at", times.arrivals)
        self._call += 1
        self._sent_steps += self._steps
        for row in self._table:
            yield MAGIC + zlib.compress(row.tobytes(), 1)

    def _number(self, name: str, values: Ints) -> None:
        """Put numbers at their marks: one for each node, or one for each of its ranks."""
        places = self._places[name]
        table = values.astype(">u8").view(np.uint8).reshape(len(self._table), len(places), 8)
        for place, at in enumerate(places):
            self._table[:, at : at + 8] = table[:, place]

    def _column(self, name: str, values: NDArray[Any]) -> None:
        (at,) = self._places[name]
        content = np.ascontiguousarray(values).view(np.uint8).reshape(len(self._table), -1)
        self._table[:, at : at + content.shape[1]] = content

    def _marked(self) -> tuple[Bytes, dict[str, list[int]]]:
        """The bytes of all nodes, with marks, and where those are."""
        batch = self._template()
        content = codec.to_bytes(batch)
        places = {"number": [_find(content, batch.number)], "sent": [_find(content, batch.sent)]}
        for name in ("rank", "first", "last"):
            places[name] = [_find(content, getattr(rows, name)) for rows in batch.ranks]
        for table in ("steps", "pieces", "arrivals"):
            for column, values in getattr(batch, table).items():
                if values.dtype.itemsize == 8 and values[0] >= _MARK:
                    places[f"{table}.{column}"] = [content.index(values.tobytes())]
        rows = np.tile(np.frombuffer(content, np.uint8), (self.bodies_per_call, 1))
        names = np.array([f"{node:05d}" for node in range(self.bodies_per_call)], "S5")
        digits = names.view(np.uint8).reshape(-1, 5)
        for at in _all(content, b"node#####"):
            rows[:, at + 4 : at + 9] = digits
        self._table, self._places = rows, places
        self._number("rank", np.arange(self.ranks))
        return rows, places

    def _template(self) -> Batch:
        marks = iter(range(_MARK, _MARK + (1 << 40), 1 << 16))
        steps, group = self._steps, self._group
        count = steps * group

        def marked(rows: int) -> Ints:
            return next(marks) + np.arange(rows)

        rows = tuple(
            RankRows(
                rank=next(marks),
                attempt=0,
                first=next(marks),
                records=2 * steps,
                last=next(marks),
                alive=True,
                steps=steps,
                pieces=_PIECES * steps,
                arrivals=BUCKETS * steps,
            )
            for _ in range(group)
        )
        return Batch(
            agent="agent-node#####",
            number=next(marks),
            node="node#####",
            sent=next(marks),
            run=self.run,
            ranks=rows,
            groups=(("0", "allreduce"),),
            steps={
                "number": marked(count),
                "own": marked(count),
                "begin": marked(count),
                "end": marked(count),
                "tokens": np.full(count, 4096),
                "samples": np.full(count, 4),
                "profiled": np.zeros(count, bool),
                "loss": marked(count).astype(float),
                "collections": np.zeros(count, np.int64),
                "collecting": np.zeros(count, np.int64),
            },
            pieces={"length": marked(_PIECES * count), "kind": np.tile(_kinds(), count)},
            arrivals={
                "group": np.zeros(BUCKETS * count, np.int32),
                "sequence": marked(BUCKETS * count),
                "at": marked(BUCKETS * count),
                "end": np.full(BUCKETS * count, -1),
                "bytes": np.full(BUCKETS * count, 25_000_000),
                "every": np.ones(BUCKETS * count, np.int32),
            },
        )


def _find(content: bytes, mark: int) -> int:
    """Where the eight bytes of a marked number begin."""
    return content.index(b"\xcf" + mark.to_bytes(8, "big")) + 1


def _all(content: bytes, text: bytes) -> Iterator[int]:
    at = content.find(text)
    while at >= 0:
        yield at
        at = content.find(text, at + 1)


def _pieces_of(own: NDArray[np.float64]) -> Ints:
    """Microseconds of the pieces, from those of the phases; none is empty."""
    pieces = np.empty((*own.shape[:2], _PIECES))
    pieces[:, :, [_INPUT, _FWD, _BWD, _OPT]] = own[:, :, :4]
    for piece in (_EDGE, _MIDDLE, _AFTER):
        pieces[:, :, piece] = own[:, :, 4] / 3
    return np.maximum(np.rint(pieces).astype(np.int64), 1)


def _kinds() -> NDArray[np.int32]:
    gaps = [
        int(gap_kinds(np.array(before), np.array(after)))
        for before, after in ((EDGE, DATA), (FORWARD, BACKWARD), (BACKWARD, OPTIMIZER))
    ]
    return np.array([gaps[0], DATA, FORWARD, gaps[1], BACKWARD, gaps[2], OPTIMIZER], np.int32)
