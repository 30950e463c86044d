"""Who waited for whom: collectives of several ranks, matched and put on one clock.

Ranks leave a collective together, so the ends of the ones they share give the offsets of their clocks.
On one clock, whoever arrives last made the others wait: a rank's wait is from its own arrival to the
last one, the rest of the collective is transfer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.intervals import EMPTY, Intervals
from computeflow.telemetry.traces.measured import RankMeasured
from computeflow.telemetry.traces.trace import distinct

Ints = NDArray[np.int64]
_PER_STEP = 10**7
"""More collectives of a group than any step has: makes one number of a step and a place in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Collectives of one group that all of its ranks recorded: a row for each rank, in their order."""

    group: str
    account: str
    ranks: tuple[int, ...]
    """Places in the list of ranks, not their numbers."""
    rows: tuple[Ints, ...]
    """Of each rank's collectives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stood:
    """Collectives of one rank, from its arrival to that of the last one."""

    start: Ints
    until: Ints
    culprit: Ints
    step: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Exposed seconds that a rank stood in collectives of one step until another one came."""

    rank: int
    account: str
    """Where the time of the collective is booked."""
    culprit: int
    step: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    waits: tuple[Wait, ...]
    offsets: tuple[int, ...]
    """Nanoseconds that each rank's clock is ahead of the first one's."""
    spread_seconds: float
    """Of the ends of shared collectives on one clock: half of them are nearer to each other."""
    last: tuple[int, ...]
    """How often each rank came last."""
    shared: int
    """Collectives that could be matched."""
    notes: tuple[str, ...]


def find_waits(ranks: Sequence[RankMeasured]) -> Waits:
    groups = list(_shared(ranks))
    offsets, spread, unreached = _clocks(ranks, groups)
    last = np.zeros(len(ranks), np.int64)
    count = 0
    stood: dict[tuple[int, str], list[_Stood]] = {}
    for group in groups:
        count += len(group.rows[0])
        for place, some in _of_group(ranks, group, offsets, last):
            stood.setdefault((place, group.account), []).append(some)
    waits = {
        (place, account, culprit, step): seconds
        for (place, account), some in stood.items()
        for culprit, step, seconds in _exposed(ranks[place].exposed.get(account, EMPTY), some)
    }
    notes = []
    if groups and unreached:
        notes.append(
            f"{unreached} ranks share no collective with the others: their waits are unknown"
        )
    return Waits(
        waits=tuple(
            Wait(rank=rank, account=account, culprit=culprit, step=step, seconds=seconds)
            for (rank, account, culprit, step), seconds in waits.items()
        ),
        offsets=tuple(offsets.tolist()),
        spread_seconds=spread,
        last=tuple(last.tolist()),
        shared=count,
        notes=tuple(notes),
    )


def _shared(ranks: Sequence[RankMeasured]) -> Iterator[Shared]:
    """Groups with at least two recorded ranks. Point-to-point messages name no partner, so of the
    groups of a pipeline only pairs can be matched.
    """
    members: dict[str, list[int]] = {}
    for place, rank in enumerate(ranks):
        for group in rank.groups:
            members.setdefault(group, []).append(place)
    for group, places in members.items():
        if len(places) < 2:
            continue
        keys, rows = zip(*(_places(ranks[place], group) for place in places), strict=True)
        common = keys[0]
        for other in keys[1:]:
            common = distinct(common[np.isin(common, other)])
        if not len(common):
            continue
        chosen = tuple(
            row[np.searchsorted(key, common)] for key, row in zip(keys, rows, strict=True)
        )
        first = ranks[places[0]]
        account = first.account_names[int(first.collectives.account[chosen[0][0]])]
        if account == "comm.pp" and len(places) > 2:
            continue
        yield Shared(group=group, account=account, ranks=tuple(places), rows=chosen)


def _places(rank: RankMeasured, group: str) -> tuple[Ints, Ints]:
    """Keys (step and place in it), in order, and rows of a rank's collectives in one group."""
    rows = np.flatnonzero(rank.collectives.group == rank.groups.index(group))
    step = rank.collectives.step[rows].astype(np.int64)
    starts = np.concatenate([[True], step[1:] != step[:-1]])
    first = np.maximum.accumulate(np.where(starts, np.arange(len(rows)), 0))
    key = (step + 1) * _PER_STEP + np.arange(len(rows)) - first
    order = np.argsort(key, kind="stable")
    return key[order], rows[order]


def _clocks(ranks: Sequence[RankMeasured], groups: Sequence[Shared]) -> tuple[Ints, float, int]:
    """Offsets against the first rank, the spread that is left, and how many ranks nothing joins."""
    offsets = np.zeros(len(ranks), np.int64)
    known = {0}
    left = list(groups)
    while left:
        reached = [group for group in left if known & set(group.ranks)]
        if not reached:
            break
        for group in reached:
            left.remove(group)
            anchor = next(i for i, place in enumerate(group.ranks) if place in known)
            base = ranks[group.ranks[anchor]].collectives.end[group.rows[anchor]]
            base = base - offsets[group.ranks[anchor]]
            for place, rows in zip(group.ranks, group.rows, strict=True):
                if place not in known:
                    ahead = ranks[place].collectives.end[rows] - base
                    offsets[place] = int(np.median(ahead))
                    known.add(place)
    return offsets, _spread(ranks, groups, offsets), len(ranks) - len(known)


def _spread(ranks: Sequence[RankMeasured], groups: Sequence[Shared], offsets: Ints) -> float:
    """Seconds between the ends of one collective on its ranks, in the median."""
    spreads = []
    for group in groups:
        ends = [
            ranks[place].collectives.end[rows] - offsets[place]
            for place, rows in zip(group.ranks, group.rows, strict=True)
        ]
        spreads.append(np.max(ends, axis=0) - np.min(ends, axis=0))
    return float(np.median(np.concatenate(spreads))) / 1e9 if spreads else 0.0


def _of_group(
    ranks: Sequence[RankMeasured], group: Shared, offsets: Ints, last: Ints
) -> Iterator[tuple[int, _Stood]]:
    """Every rank of a group and how long it stood in its collectives; counts who came last."""
    places = np.array(group.ranks)
    arrivals = np.stack(
        [
            ranks[place].collectives.start[rows] - offsets[place]
            for place, rows in zip(group.ranks, group.rows, strict=True)
        ]
    )
    latest = arrivals.max(axis=0)
    alone = (arrivals == latest).sum(axis=0) == 1  # where all come at once, nobody is late
    culprit = places[arrivals.argmax(axis=0)]
    np.add.at(last, culprit[alone], 1)
    for place, rows in zip(group.ranks, group.rows, strict=True):
        done = ranks[place].collectives
        start, end = done.start[rows], done.end[rows]
        until = np.minimum(latest + offsets[place], end)
        others = (culprit != place) & (until > start)
        yield (
            place,
            _Stood(
                start=start[others],
                until=until[others],
                culprit=culprit[others],
                step=done.step[rows][others],
            ),
        )


def _exposed(exposed: Intervals, stood: Sequence[_Stood]) -> Iterator[tuple[int, int, float]]:
    """Culprit, step and exposed seconds; where collectives overlap, the first one has the time."""
    start, until, culprit, step = (
        np.concatenate([getattr(some, name) for some in stood])
        for name in ("start", "until", "culprit", "step")
    )
    order = np.argsort(start, kind="stable")
    start, until, culprit, step = start[order], until[order], culprit[order], step[order]
    start[1:] = np.maximum(start[1:], np.maximum.accumulate(until)[:-1])
    waited = exposed.within(start, np.maximum(until, start)) / 1e9
    for which in distinct(step):
        for who in distinct(culprit[step == which]):
            seconds = float(waited[(step == which) & (culprit == who)].sum())
            if seconds > 0:
                yield int(who), int(which), seconds


_APART_SECONDS = 50e-6
"""Ends of one collective on devices of one clock lie nearer to each other than this."""


def ends_together(ranks: Sequence[RankMeasured]) -> bool:
    """Whether collectives that share a name share their ends: else they are of several groups."""
    waits = find_waits(ranks)
    if not waits.shared:
        return True
    lengths = np.concatenate([rank.collectives.end - rank.collectives.start for rank in ranks])
    return waits.spread_seconds <= max(_APART_SECONDS, float(np.median(lengths)) / 5e9)


def apart(ranks: Sequence[RankMeasured]) -> list[RankMeasured]:
    """The same ranks with no group in common: nobody is said to have waited for anybody."""
    return [
        replace(rank, groups=tuple(f"of rank {rank.rank}: {group}" for group in rank.groups))
        for rank in ranks
    ]
