"""One attempt of a run: what every rank did in each of its steps, and for whom it waited.

`measure_attempt` puts the files of all ranks on one clock, takes exposed waits and transfers out of the
phases in which they passed, and says what the rank that came last did longer than the one that waited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.intervals import Intervals
from computeflow.telemetry.run_folders.arrivals import joined_groups
from computeflow.telemetry.run_folders.clocks import ClockOffset, offsets_of, shift
from computeflow.telemetry.run_folders.device_time import on_device
from computeflow.telemetry.run_folders.phases import PARTS, Ints, is_gap, parts_of
from computeflow.telemetry.run_folders.rank_file import Floats, Pieces, RankFile, StepRows
from computeflow.telemetry.run_folders.rank_waits import RunWaits, Waits, find_waits

UNEQUAL = 1.05
"""Ratio of tokens from which on a longer computation is more work, as of FLOPs in traces."""
_COMPUTING = [PARTS.index("forward"), PARTS.index("backward")]
_IS_COMPUTING = np.isin(np.arange(len(PARTS)), _COMPUTING)
_OPTIMIZER = PARTS.index("optimizer")
UNKNOWN_PART = PARTS.index("unexplained")


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRows:
    """Waits of one rank, one row for each of them."""

    step: Ints
    """Row of the step in which it lies."""
    culprit: Ints
    """Index of the rank that came last."""
    part: Ints
    """What that rank did longer, as a place in `PARTS`."""
    micros: Floats
    unequal: Floats
    """Share of it that more tokens explain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTime:
    """What a rank did in one attempt; times are Unix microseconds on one clock."""

    file: RankFile
    began: int
    first: int
    """End of the first step; the last record where there is none."""
    last: int
    """End of the last step."""
    parts: Floats
    """Microseconds of each step by `PARTS`, without waits and transfers."""
    comm: Floats
    """Microseconds of exposed transfers in each step."""
    waits: WaitRows
    idle: Pieces
    """Host time outside of known phases: `kind` says where."""

    @property
    def steps(self) -> StepRows:
        return self.file.steps

    @property
    def own(self) -> Floats:
        """Microseconds of each step that the rank does not spend waiting or transferring."""
        return np.asarray(self.parts.sum(axis=1))

    @property
    def rank(self) -> int:
        return self.file.start.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTime:
    number: int
    ranks: tuple[RankTime, ...]
    waits: RunWaits
    waits_missing: str
    """Why nobody knows who waited for whom; "" where it is known."""
    notes: tuple[str, ...]

    @property
    def begin(self) -> int:
        return min(rank.began for rank in self.ranks)


def measure_attempt(number: int, files: Sequence[RankFile]) -> AttemptTime:
    files = sorted(files, key=lambda file: file.start.rank)
    arrivals = joined_groups({file.start.rank: file.arrivals for file in files})
    files = [replace(file, arrivals=arrivals[file.start.rank]) for file in files]
    offsets, notes = offsets_of(files)
    files = [on_device(_on_clock(file, offsets[file.start.host])) for file in files]
    waits = find_waits([file.pieces for file in files], [file.arrivals for file in files])
    missing = _missing(files, waits)
    exposed = [
        _no_waits() if missing else _in_steps(some, file.steps)
        for file, some in zip(files, waits.ranks, strict=True)
    ]
    ranks = [_measure(file, some) for file, some in zip(files, exposed, strict=True)]
    table = _StepTable.of(ranks)
    ranks = [
        replace(rank, waits=_causes(place, rank, table, some))
        for place, (rank, some) in enumerate(zip(ranks, exposed, strict=True))
    ]
    return AttemptTime(
        number=number,
        ranks=tuple(ranks),
        waits=waits,
        waits_missing=missing,
        notes=tuple(notes) if waits.matched else (),
    )


def _missing(files: Sequence[RankFile], waits: RunWaits) -> str:
    """Why nobody knows who waited for whom; "" where it is known."""
    if len(files) < 2:
        return "files of other ranks"
    if not waits.matched:
        return "collectives that several ranks share"
    if any(len(file.leads) and not file.arrivals.timed for file in files):
        return "starts of collectives on the device (TORCH_NCCL_ENABLE_TIMING=1)"
    return ""


def _no_waits() -> Waits:
    none = np.zeros(0, np.int64)
    return Waits(
        start=none,
        end=none,
        culprit=none,
        transfer_start=none,
        transfer_end=none,
    )


def _in_steps(waits: Waits, steps: StepRows) -> Waits:
    """Waits within steps; one that goes on in the next step is cut."""
    if not len(steps):
        return _no_waits()
    start, end, kept = _cut(waits.start, waits.end, steps)
    transfer_start, transfer_end, _ = _cut(waits.transfer_start, waits.transfer_end, steps)
    return Waits(
        start=start,
        end=end,
        culprit=waits.culprit[kept],
        transfer_start=transfer_start,
        transfer_end=transfer_end,
    )


def _cut(start: Ints, end: Ints, steps: StepRows) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    begun = np.maximum(start, steps.begin[0])
    row = np.searchsorted(steps.end, begun, side="right")
    ended = np.minimum(end, steps.end[np.minimum(row, len(steps) - 1)])
    kept = (ended > begun) & (row < len(steps))
    return begun[kept], ended[kept], kept


def _on_clock(file: RankFile, offset: ClockOffset) -> RankFile:
    """The file on the first host's clock."""
    if not offset.ahead.any():
        return file
    steps = file.steps
    return replace(
        file,
        steps=replace(
            steps,
            begin=steps.begin - offset.ahead_at(steps.begin),
            end=steps.end - offset.ahead_at(steps.end),
        ),
        pieces=shift(file.pieces, offset),
        leads=shift(file.leads, offset),
        arrivals=file.arrivals.shifted(offset.ahead_at(file.arrivals.at)),
    )


def _measure(file: RankFile, waits: Waits) -> RankTime:
    """A rank's time by step and part; its waits are still without causes."""
    steps, pieces = file.steps, file.pieces
    began = file.start.epoch + file.start.began
    first = int(steps.end[0]) if len(steps) else file.last
    last = int(steps.end[-1]) if len(steps) else file.last
    step = np.minimum(np.searchsorted(steps.end, pieces.start, side="right"), len(steps) - 1)
    length = (pieces.end - pieces.start).astype(np.float64)
    waited = _within(pieces, waits.start, waits.end)
    moved = _within(pieces, waits.transfer_start, waits.transfer_end)
    own = length - waited - moved
    count = len(PARTS)
    key = step * count + parts_of(pieces.kind, file.names)
    parts = np.bincount(key, own, len(steps) * count).reshape(len(steps), count)
    host = is_gap(pieces.kind)
    return RankTime(
        file=file,
        began=min(began, first),
        first=first,
        last=last,
        parts=parts.astype(np.float64),
        comm=np.bincount(step, moved, len(steps)).astype(np.float64),
        waits=_no_causes(),
        idle=Pieces(
            start=pieces.start[host],
            end=pieces.start[host] + own[host].astype(np.int64),
            kind=pieces.kind[host],
        ),
    )


def _no_causes() -> WaitRows:
    none = np.zeros(0, np.int64)
    return WaitRows(step=none, culprit=none, part=none, micros=np.zeros(0), unequal=np.zeros(0))


def _within(pieces: Pieces, start: Ints, end: Ints) -> Floats:
    if not len(start):
        return np.zeros(len(pieces))
    return Intervals(start, end).within(pieces.start, pieces.end).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepTable:
    """Steps of all ranks below each other, to be looked up by rank and number."""

    key: Ints
    """Goes up: the rank's index times `span`, and the step's number."""
    span: int
    first: Ints
    """Row of each rank's first step."""
    since: Floats
    busy: Floats
    work: Ints

    @classmethod
    def of(cls, ranks: Sequence[RankTime]) -> _StepTable:
        span = 1 + max((int(rank.steps.number.max(initial=0)) for rank in ranks), default=0)
        counts = [len(rank.steps) for rank in ranks]
        return cls(
            key=np.concatenate(
                [place * span + rank.steps.number for place, rank in enumerate(ranks)]
            ),
            span=span,
            first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            since=np.concatenate([_since(rank) for rank in ranks]),
            busy=np.concatenate([rank.parts[:, _COMPUTING].sum(axis=1) for rank in ranks]),
            work=np.concatenate([_work(rank.steps) for rank in ranks]),
        )

    def rows(self, rank: Ints, number: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Rows of steps of ranks, and which are there."""
        wanted = rank * self.span + number
        row = np.minimum(np.searchsorted(self.key, wanted), len(self.key) - 1)
        return row, self.key[row] == wanted


def _causes(place: int, rank: RankTime, table: _StepTable, waits: Waits) -> WaitRows:
    """Who made a rank wait in each of its steps, and by what it did longer in the same step; of that
    the share which more tokens explain.
    """
    steps = rank.steps
    if not len(steps) or not len(waits):
        return _no_causes()
    culprit, micros = waits.culprit, (waits.end - waits.start).astype(np.float64)
    row = np.searchsorted(steps.end, waits.start, side="right")
    in_step = np.bincount(row, micros, len(steps)).astype(np.float64)
    there, known = table.rows(culprit, steps.number[row])
    mine = table.first[place] + row
    excess = table.since[there] - table.since[mine]
    longer = excess.sum(axis=1) > 0
    part = np.where(known & longer, np.argmax(excess, axis=1), UNKNOWN_PART)
    own, less = table.work[there], table.work[mine]
    more = known & (less > 0) & (own > UNEQUAL * less) & _IS_COMPUTING[part]
    share = table.busy[there] * (1 - less / np.maximum(own, 1)) / np.maximum(in_step[row], 1.0)
    unequal = np.where(more, np.minimum(share, 1.0), 0.0)
    return WaitRows(step=row, culprit=culprit, part=part, micros=micros, unequal=unequal)


def _since(rank: RankTime) -> Floats:
    """What a rank did between the reductions of two steps: the optimizer before, the rest after."""
    parts = rank.parts.copy()
    parts[1:, _OPTIMIZER] = rank.parts[:-1, _OPTIMIZER]
    return parts


def _work(steps: StepRows) -> Ints:
    return steps.tokens if (steps.tokens > 0).any() else steps.samples
