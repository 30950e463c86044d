"""Ranks replayed together: `RankLines`.

Each rank is a line of its own work, of collectives and messages that it joins, and of waits for
them. A collective is done on a rank when all that it needs have come, and its transfer after that.
Replayed unchanged the lines give the recorded times; with a rank's work changed, they give what the
others would have waited.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.traces.collective_matching import SharedCollectives
from computeflow.telemetry.traces.collective_waits import CollectiveWaits
from computeflow.telemetry.traces.message_matching import TOLERANCE_NS
from computeflow.telemetry.traces.rank_measurements import MeetingKind, RankMeasurement

MAX_EVENTS = 400_000
"""Most joins and waits of all ranks together: a replay takes a microsecond for each."""
UNDERSTOOD = 0.01
"""Largest relative difference between the recorded windows and their unchanged replay."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Do(IntEnum):
    """What a rank does next."""

    WORK = 0
    """Its own work, of a piece of its line."""
    JOIN = 1
    """It comes to a collective, so long after what it did last."""
    WAIT = 2
    """It waits until a collective is done."""
    LAG = 3
    """It goes on so long after that."""
    STEP = 4
    """A step ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    start: float
    do: list[int]
    which: list[int]
    """Piece of work, or collective."""
    seconds: list[float]
    """Length of joins and lags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLines:
    lines: tuple[_Line, ...]
    needs: _Needs
    """The ranks that each collective needs on each rank, and its transfer after they came."""
    sender: list[int]
    """The rank that sends each message; -1 of a collective."""
    work: tuple[Floats, ...]
    """Seconds of each rank's own work, by piece."""
    accounts: tuple[tuple[str, ...], ...]
    parts: tuple[NDArray[np.float32], ...]
    """What each piece of work holds, by account."""
    step_of: tuple[Ints, ...]
    """The step of each piece, counted from 0."""
    between: tuple[Ints, ...]
    """How many collectives of its step the rank has joined before each piece."""
    early: frozenset[int]
    """Collectives that reduce gradients which a later pass of the step reduces again."""
    recorded: Floats
    """Recorded ends of each rank's steps (ranks x steps), in seconds."""
    whole: slice
    """Steps that are whole and do not wait for what was not recorded."""

    @property
    def steps(self) -> int:
        return int(self.recorded.shape[1])

    def run(
        self, work: Sequence[Floats] | None = None, skipped: Collection[int] = ()
    ) -> Floats | None:
        """Ends of each rank's steps, without some collectives; None where the lines wait for each
        other for ever.
        """
        work = self.work if work is None else work
        came: list[dict[int, float]] = [{} for _ in self.needs]
        at = [0] * len(self.lines)
        now = [line.start for line in self.lines]
        ends: list[list[float]] = [[] for _ in self.lines]
        moved = True
        while moved:
            moved = False
            for rank, line in enumerate(self.lines):
                moved |= self._advance(rank, line, at, now, came, ends, work[rank], skipped)
            moved = moved or self._let_send(at)
        if any(at[rank] < len(line.do) for rank, line in enumerate(self.lines)):
            return None
        return np.array(ends)

    def _let_send(self, at: list[int]) -> bool:
        """Where all wait for each other, a message was sent before its receiver asked for it."""
        for rank, line in enumerate(self.lines):
            if at[rank] < len(line.do) and self.sender[line.which[at[rank]]] == rank:
                at[rank] += 1
                return True
        return False

    def _advance(
        self,
        rank: int,
        line: _Line,
        at: list[int],
        now: list[float],
        came: list[dict[int, float]],
        ends: list[list[float]],
        work: Floats,
        skipped: Collection[int],
    ) -> bool:
        """Let a rank go on as far as it can."""
        first = place = at[rank]
        time = now[rank]
        while place < len(line.do):
            do, which = line.do[place], line.which[place]
            if do == Do.WORK:
                time += work[which]
            elif do == Do.JOIN:
                came[which][rank] = time + line.seconds[place]
            elif do == Do.WAIT and which not in skipped:
                needed, transfer = self.needs[which][rank]
                if any(other not in came[which] for other in needed):
                    break
                time = max(time, max(came[which][other] for other in needed) + transfer)
            elif do == Do.LAG:
                time += line.seconds[place]
            elif do == Do.STEP:
                ends[rank].append(time)
            place += 1
        at[rank], now[rank] = place, time
        return place > first

    def error(self) -> float | None:
        """The unchanged replay over the recording, less 1; None where it does not come to an end."""
        ends = self.run()
        if ends is None:
            return None
        starts = np.array([line.start for line in self.lines])
        whole = float((self.recorded[:, -1] - starts).sum())
        return float((ends[:, -1] - starts).sum()) / whole - 1 if whole else 0.0


def rank_lines(
    ranks: Sequence[RankMeasurement], waits: CollectiveWaits
) -> tuple[RankLines | None, str]:
    """The lines of ranks that share collectives; or why there are none."""
    if len(ranks) < 2 or not waits.shared:
        return None, "no collectives are shared"
    bounds = [rank.line.steps for rank in ranks if rank.line is not None]
    if len(bounds) < len(ranks) or len({len(each) for each in bounds}) > 1:
        return None, "the ranks do not have the same steps"
    if sum(len(group.ranks) * len(group.rows[0]) for group in waits.groups) > MAX_EVENTS:
        return None, f"more than {MAX_EVENTS:,} collectives: too many to be replayed"
    needs, joined = _needs(ranks, waits)
    built = [_build(rank, joined[index], waits.offsets[index]) for index, rank in enumerate(ranks)]
    lines = RankLines(
        lines=tuple(line for line, *_ in built),
        needs=needs,
        sender=[
            group.ranks[0] if group.meeting is MeetingKind.SEND else -1
            for group in waits.groups
            for _ in group.rows[0]
        ],
        work=tuple(work for _, work, *_ in built),
        accounts=tuple(rank.line.accounts for rank in ranks if rank.line is not None),
        parts=tuple(parts for _, _, parts, _ in built),
        step_of=tuple(step for *_, step in built),
        between=tuple(
            _between(rank, step, joined[index], waits.offsets[index])
            for index, (rank, (*_, step)) in enumerate(zip(ranks, built, strict=True))
        ),
        early=_early(ranks, waits),
        recorded=np.stack(
            [
                (steps[1:] - offset) / 1e9
                for steps, offset in zip(bounds, waits.offsets, strict=True)
            ]
        ),
        whole=_whole(len(bounds[0]) - 1, marked=all(rank.steps for rank in ranks)),
    )
    error = lines.error()
    if error is None or abs(error) > UNDERSTOOD:
        how = "does not end" if error is None else f"is {100 * error:+.1f} % off the recording"
        return None, f"the unchanged replay of all ranks {how}: it is not understood"
    return lines, ""


def _early(ranks: Sequence[RankMeasurement], waits: CollectiveWaits) -> frozenset[int]:
    found: list[int] = []
    first = 0
    for group in waits.groups:
        early = np.logical_and.reduce(
            [
                ranks[index].collectives.early[rows]
                for index, rows in zip(group.ranks, group.rows, strict=True)
            ]
        )
        found += (first + np.flatnonzero(early)).tolist()
        first += len(group.rows[0])
    return frozenset(found)


def _whole(steps: int, *, marked: bool) -> slice:
    """All but the first, whose waits may have a cause before the recording; without marks, the last
    is cut off, too.
    """
    last = steps if marked else steps - 1
    return slice(1, last) if last > 2 else slice(0, steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joined:
    """A collective of a rank, on the common clock in nanoseconds."""

    start: int
    end: int
    number: int
    done: int
    """When those that it needs had come, and its transfer after that."""


_Needs = list[dict[int, tuple[tuple[int, ...], float]]]


def _needs(
    ranks: Sequence[RankMeasurement], waits: CollectiveWaits
) -> tuple[_Needs, list[list[_Joined]]]:
    needs: _Needs = []
    joined: list[list[_Joined]] = [[] for _ in ranks]
    for group in waits.groups:
        came, left = _times(ranks, group, waits.offsets)
        first = len(needs)
        needs += [{} for _ in range(came.shape[1])]
        for at, index in enumerate(group.ranks):
            needed = came <= left[at] + TOLERANCE_NS
            if group.meeting is MeetingKind.ALL:
                needed[:] = True
            needed[at] = True
            last = np.where(needed, came, came[at]).max(axis=0)
            ended = left.min(axis=0) if group.meeting is MeetingKind.SEND else left[at]
            transfer = _transfers(last, came[at], ended, group.meeting)
            for column in range(came.shape[1]):
                members = tuple(group.ranks[row] for row in np.flatnonzero(needed[:, column]))
                needs[first + column][index] = members, int(transfer[column]) / 1e9
                joined[index].append(
                    _Joined(
                        start=int(came[at, column]),
                        end=int(left[at, column]),
                        number=first + column,
                        done=int(last[column] + transfer[column]),
                    )
                )
    for each in joined:
        each.sort(key=lambda one: one.start)
    return needs, joined


def _transfers(last: Ints, came: Ints, left: Ints, meeting: MeetingKind) -> Ints:
    """Time of each transfer after the last rank came. A message ends on a rank when that asks for it,
    which may be much later: its end on the other counts, and it takes no longer than the quickest
    quarter of its kind. A collective that others came to first takes no longer than those that were
    waited for.
    """
    after = np.maximum(left - last, 0)
    if meeting is MeetingKind.SEND:
        return np.asarray(np.minimum(after, int(np.quantile(after, 0.25))))
    waited = last > came
    usual = int(np.median(after[waited])) if waited.any() else TOLERANCE_NS
    return np.asarray(np.where(waited, after, np.minimum(after, usual)))


def _times(
    ranks: Sequence[RankMeasurement], group: SharedCollectives, offsets: Sequence[int]
) -> tuple[Ints, Ints]:
    came, left = (
        np.stack(
            [
                getattr(ranks[index].collectives, side)[rows] - offsets[index]
                for index, rows in zip(group.ranks, group.rows, strict=True)
            ]
        )
        for side in ("start", "end")
    )
    return came, left


def _build(
    rank: RankMeasurement, joined: Sequence[_Joined], offset: int
) -> tuple[_Line, Floats, NDArray[np.float32], Ints]:
    assert rank.line is not None
    edges = rank.line.edges - offset
    waits = rank.line.waits
    waiting = waits.contains(rank.line.edges[:-1])
    steps = rank.line.steps - offset
    step_of = np.clip(np.searchsorted(steps, edges[:-1], side="right") - 1, 0, len(steps) - 2)
    work = np.where(waiting, 0.0, np.diff(edges) / 1e9)
    events = _events(joined, waits.start - offset, waits.end - offset, edges, steps)
    do: list[int] = []
    which: list[int] = []
    seconds: list[float] = []
    for _, what, number, value in events:
        do.append(what)
        which.append(number)
        seconds.append(value)
    line = _Line(start=int(edges[0]) / 1e9, do=do, which=which, seconds=seconds)
    return line, work, rank.line.seconds, step_of


def _between(rank: RankMeasurement, step_of: Ints, joined: Sequence[_Joined], offset: int) -> Ints:
    assert rank.line is not None
    edges, steps = rank.line.edges[:-1] - offset, rank.line.steps[:-1] - offset
    starts = np.array([one.start for one in joined], np.int64)
    before = np.searchsorted(starts, edges, side="right")
    return np.asarray(np.maximum(before - np.searchsorted(starts, steps)[step_of], 0))


_Event = tuple[tuple[int, int, int], int, int, float]
"""Time, order at that time and within a wait, what is done, its number, its seconds."""


def _events(
    joined: Sequence[_Joined], starts: Ints, ends: Ints, edges: Ints, steps: Ints
) -> list[_Event]:
    """What a rank does, in order of time."""
    events: list[_Event] = []
    inside = np.searchsorted(starts, edges[:-1], side="right") - 1
    for piece, at in enumerate(inside.tolist()):
        if at < 0 or edges[piece] >= ends[at]:
            events.append(((int(edges[piece]), 3, 0), Do.WORK, piece, 0.0))
    before = np.sort(np.array([one.end for one in joined], np.int64))
    for one in joined:
        at = int(np.searchsorted(starts, one.start, side="right")) - 1
        if at >= 0 and one.start < ends[at]:  # it comes while the rank waits, for another before it
            begin = int(starts[at])
            ended = int(np.searchsorted(before, one.start, side="right")) - 1
            since = max(begin, int(before[ended]) if ended >= 0 else begin)
            lag = (one.start - since) / 1e9
            events.append(((begin, 1, one.start), Do.JOIN, one.number, lag))
        else:
            events.append(((max(one.start, int(edges[0])), 1, 0), Do.JOIN, one.number, 0.0))
    for begin, end, awaited in _awaited(joined, starts, ends):
        events += [((begin, 1, one.end), Do.WAIT, one.number, 0.0) for one in awaited]
        last = max((one.done for one in awaited), default=begin)
        events.append(((begin, 2, 0), Do.LAG, -1, max(end - max(last, begin), 0) / 1e9))
    events += [((int(edge), 0, 0), Do.STEP, -1, 0.0) for edge in steps[1:]]
    return sorted(events, key=lambda event: event[0])


def _awaited(
    joined: Sequence[_Joined], starts: Ints, ends: Ints
) -> Iterator[tuple[int, int, list[_Joined]]]:
    """Each wait with the collectives that end during it."""
    by_end = sorted(joined, key=lambda one: one.end)
    times = np.array([one.end for one in by_end], np.int64)
    for begin, end in zip(starts.tolist(), ends.tolist(), strict=True):
        near = max(TOLERANCE_NS, (end - begin) // 20)
        first, last = np.searchsorted(times, [begin, end + near], side="right")
        found = [one for one in by_end[first:last] if one.start < end]
        yield begin, end, found
