"""Waits between ranks: who waited for whom in collectives and messages, on one clock.

Whoever comes last makes the others wait: a rank's wait is from its own arrival to that of the last
rank it needs, the rest is transfer. A rank that was itself waiting meanwhile passes the blame on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.intervals import EMPTY, Intervals, union
from computeflow.telemetry.traces.collective_matching import (
    SharedCollectives,
    is_causal,
    match,
)
from computeflow.telemetry.traces.message_matching import TOLERANCE_NS
from computeflow.telemetry.traces.rank_clocks import align
from computeflow.telemetry.traces.rank_measurements import MeetingKind, RankMeasurement
from computeflow.telemetry.traces.trace import distinct

Ints = NDArray[np.int64]
_NEVER = np.iinfo(np.int64).min // 2
MAX_PASSED_ON = 64
"""Most ranks between which blame is passed on: it takes the cube of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupWaits:
    """Waits of one rank in one group, from its arrival to that of the last rank that it needs."""

    start: Ints
    until: Ints
    culprit: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Exposed seconds that a rank waited in collectives of one step until another rank arrived."""

    rank: int
    account: str
    """The account of the collective's time."""
    culprit: int
    step: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveWaits:
    waits: tuple[Wait, ...]
    offsets: tuple[int, ...]
    """Nanoseconds that each rank's clock is ahead of the first one's."""
    spread_seconds: float
    """Median distance between the ends of one shared collective on its ranks."""
    last: tuple[int, ...]
    """How often each rank came last."""
    shared: int
    """Collectives and messages that could be matched."""
    notes: tuple[str, ...]
    groups: tuple[SharedCollectives, ...] = ()


def find_waits(ranks: Sequence[RankMeasurement]) -> CollectiveWaits:
    groups = match(ranks)
    clocks = align(ranks, groups)
    offsets = clocks.offsets
    notes = list(clocks.notes)
    causal = [group for group in groups if is_causal(ranks, group, offsets)]
    if refused := sum(len(g.rows[0]) for g in groups) - sum(len(g.rows[0]) for g in causal):
        notes.append(
            f"{refused:,} collectives seem to end on one rank before another comes: their waits are "
            "unknown"
        )
    if groups and (unreached := len(ranks) - len(clocks.known)):
        notes.append(
            f"{unreached} ranks share no collective with the others: their waits are unknown"
        )
    last = np.zeros(len(ranks), np.int64)
    waited = _waited(ranks, causal, offsets, last)
    if len(causal) > 1 and len(ranks) <= MAX_PASSED_ON:
        waited = _passed_on(waited, len(ranks))
    return CollectiveWaits(
        waits=tuple(_by_step(ranks, waited, offsets)),
        offsets=tuple(offsets.tolist()),
        spread_seconds=_spread(ranks, causal, offsets),
        last=tuple(last.tolist()),
        shared=sum(len(group.rows[0]) for group in causal),
        notes=tuple(notes),
        groups=tuple(causal),
    )


_Waited = dict[tuple[int, str], dict[int, Intervals]]
"""When each rank waited in each account, by the rank that it waited for; on the common clock."""


def _waited(
    ranks: Sequence[RankMeasurement],
    groups: Sequence[SharedCollectives],
    offsets: Ints,
    last: Ints,
) -> _Waited:
    parts: dict[tuple[int, str], list[_GroupWaits]] = {}
    sending: dict[tuple[int, str], list[_GroupWaits]] = {}
    for group in groups:
        for index, waits, sends in _group_waits(ranks, group, offsets, last):
            (sending if sends else parts).setdefault((index, group.account), []).append(waits)
    waited: _Waited = {}
    for key in {**parts, **sending}:
        index, account = key
        exposed = ranks[index].exposed.get(account, EMPTY)
        exposed = Intervals(exposed.start - offsets[index], exposed.end - offsets[index])
        waited[key] = _exposed(exposed, parts.get(key, []))
        if key in sending:  # a send is waited for where nothing else is under way
            rest = exposed.minus(_under_way(ranks[index], int(offsets[index])))
            for culprit, intervals in _exposed(rest, sending[key]).items():
                waited[key][culprit] = waited[key].get(culprit, EMPTY).either(intervals)
    return waited


def _under_way(rank: RankMeasurement, offset: int) -> Intervals:
    done = rank.collectives
    rows = done.meeting != MeetingKind.SEND
    return union(done.start[rows] - offset, done.end[rows] - offset)


def _group_waits(
    ranks: Sequence[RankMeasurement], group: SharedCollectives, offsets: Ints, last: Ints
) -> Iterator[tuple[int, _GroupWaits, bool]]:
    """Each rank of a group with its waits there, and whether it waited to send; counts in `last` who
    came last.
    """
    places = np.array(group.ranks)
    done = [ranks[index].collectives for index in group.ranks]
    came, left = (
        np.stack(
            [
                getattr(each, side)[rows] - offsets[index]
                for each, index, rows in zip(done, group.ranks, group.rows, strict=True)
            ]
        )
        for side in ("start", "end")
    )
    latest = came.max(axis=0)
    alone = (came == latest).sum(axis=0) == 1  # where all come at once, nobody is late
    np.add.at(last, places[came.argmax(axis=0)][alone], 1)
    for at, index in enumerate(group.ranks):
        others = came.copy()
        others[at] = _NEVER
        if group.meeting is not MeetingKind.ALL:  # who comes after it has left was not needed
            others[others > left[at] + TOLERANCE_NS] = _NEVER
        until = np.minimum(others.max(axis=0), left[at])
        rows = until > came[at]
        waits = _GroupWaits(
            start=came[at][rows],
            until=until[rows],
            culprit=places[others.argmax(axis=0)][rows],
        )
        yield index, waits, group.meeting is MeetingKind.SEND and at == 0


def _exposed(exposed: Intervals, waits: Sequence[_GroupWaits]) -> dict[int, Intervals]:
    """Exposed waits by culprit; where collectives overlap, the first one has the time."""
    if not waits:
        return {}
    start, until, culprit = (
        np.concatenate([getattr(part, name) for part in waits])
        for name in ("start", "until", "culprit")
    )
    order = np.argsort(start, kind="stable")
    start, until, culprit = start[order], until[order], culprit[order]
    start[1:] = np.maximum(start[1:], np.maximum.accumulate(until)[:-1])
    return {
        int(who): union(start[culprit == who], until[culprit == who]).both(exposed)
        for who in distinct(culprit)
    }


def _passed_on(waited: _Waited, count: int) -> _Waited:
    """Waits for a rank that was itself waiting meanwhile are waits for the one that it waited for."""
    direct: dict[int, dict[int, Intervals]] = {}
    for (index, _), by in waited.items():
        for culprit, intervals in by.items():
            known = direct.setdefault(index, {})
            known[culprit] = known.get(culprit, EMPTY).either(intervals)
    for _ in range(count):
        moved = False
        for (index, _), by in waited.items():
            for culprit in list(by):
                for further, meanwhile in direct.get(culprit, {}).items():
                    passed = by[culprit].both(meanwhile)
                    if further == index or passed.total == 0:
                        continue
                    by[culprit] = by[culprit].minus(passed)
                    by[further] = by.get(further, EMPTY).either(passed)
                    moved = True
        if not moved:
            break
    return waited


def _by_step(ranks: Sequence[RankMeasurement], waited: _Waited, offsets: Ints) -> Iterator[Wait]:
    for (index, account), by in waited.items():
        rank = ranks[index]
        edges = step_edges(rank) - offsets[index]
        numbers = rank.steps or (-1,)
        for culprit, intervals in by.items():
            seconds = np.diff(intervals.before(edges)) / 1e9
            for step, value in zip(numbers, seconds.tolist(), strict=True):
                if value > 0:
                    yield Wait(
                        rank=index, account=account, culprit=culprit, step=step, seconds=value
                    )


def step_edges(rank: RankMeasurement) -> Ints:
    """Bounds of the rank's steps, on its own clock; of its window where none are marked."""
    if not rank.steps:
        return np.array([rank.window_start, rank.window_end], np.int64)
    inner = rank.window_start + np.rint(1e9 * np.cumsum(rank.step_seconds)).astype(np.int64)
    inner[-1] = rank.window_end
    return np.concatenate([[rank.window_start], inner])


def _spread(
    ranks: Sequence[RankMeasurement], groups: Sequence[SharedCollectives], offsets: Ints
) -> float:
    """Median seconds between the ends of one collective that all of its ranks need."""
    spreads = []
    for group in groups:
        if group.meeting is MeetingKind.ALL:
            ends = [
                ranks[index].collectives.end[rows] - offsets[index]
                for index, rows in zip(group.ranks, group.rows, strict=True)
            ]
            spreads.append(np.max(ends, axis=0) - np.min(ends, axis=0))
    return float(np.median(np.concatenate(spreads))) / 1e9 if spreads else 0.0


_APART_SECONDS = 50e-6
"""Ends of one collective on devices of one clock lie nearer to each other than this."""


def ends_together(ranks: Sequence[RankMeasurement]) -> bool:
    """Whether collectives of one name end together; otherwise they belong to several groups."""
    waits = find_waits(ranks)
    if not waits.shared:
        return True
    lengths = np.concatenate([rank.collectives.end - rank.collectives.start for rank in ranks])
    return waits.spread_seconds <= max(_APART_SECONDS, float(np.median(lengths)) / 5e9)


def apart(ranks: Sequence[RankMeasurement]) -> list[RankMeasurement]:
    """The same ranks with no group in common, so that no waits are matched."""
    return [
        replace(rank, groups=tuple(f"of rank {rank.rank}: {group}" for group in rank.groups))
        for rank in ranks
    ]
