"""Waits between ranks: their shared collectives, matched and put on one clock.

Ranks leave a collective together, so the ends of the ones they share give the offsets of their
clocks. On one clock, whoever arrives last made the others wait: a rank's wait is from its own
arrival to the last one, the rest of the collective is transfer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.intervals import EMPTY, Intervals
from computeflow.telemetry.traces.rank_measurements import RankMeasurement
from computeflow.telemetry.traces.trace import distinct

Ints = NDArray[np.int64]
_PER_STEP = 10**7
"""More collectives of a group than any step has; makes one key of a step and an index within it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCollectives:
    """Collectives of one group that all of its ranks recorded, matched in order."""

    group: str
    account: str
    ranks: tuple[int, ...]
    """Indexes in the list of ranks, not rank numbers."""
    rows: tuple[Ints, ...]
    """Rows of each rank's `RankCollectives`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankWaits:
    """Waits of one rank in collectives, from its arrival to that of the last rank."""

    start: Ints
    until: Ints
    culprit: Ints
    step: NDArray[np.int32]


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
    """Collectives that could be matched."""
    notes: tuple[str, ...]


def find_waits(ranks: Sequence[RankMeasurement]) -> CollectiveWaits:
    groups = list(_shared(ranks))
    offsets, spread, unreached = _clocks(ranks, groups)
    last = np.zeros(len(ranks), np.int64)
    count = 0
    waited: dict[tuple[int, str], list[_RankWaits]] = {}
    for group in groups:
        count += len(group.rows[0])
        for index, waiting in _group_waits(ranks, group, offsets, last):
            waited.setdefault((index, group.account), []).append(waiting)
    waits = {
        (index, account, culprit, step): seconds
        for (index, account), waiting in waited.items()
        for culprit, step, seconds in _exposed(ranks[index].exposed.get(account, EMPTY), waiting)
    }
    notes = []
    if groups and unreached:
        notes.append(
            f"{unreached} ranks share no collective with the others: their waits are unknown"
        )
    return CollectiveWaits(
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


def _shared(ranks: Sequence[RankMeasurement]) -> Iterator[SharedCollectives]:
    """Matched collectives of groups with at least two recorded ranks. Point-to-point messages name
    no partner, so for the groups of a pipeline only pairs can be matched.
    """
    members: dict[str, list[int]] = {}
    for index, rank in enumerate(ranks):
        for group in rank.groups:
            members.setdefault(group, []).append(index)
    for group, places in members.items():
        if len(places) < 2:
            continue
        keys, rows = zip(*(_collective_keys(ranks[index], group) for index in places), strict=True)
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
        yield SharedCollectives(group=group, account=account, ranks=tuple(places), rows=chosen)


def _collective_keys(rank: RankMeasurement, group: str) -> tuple[Ints, Ints]:
    """Sorted keys (step and index within it) and rows of a rank's collectives in one group."""
    rows = np.flatnonzero(rank.collectives.group == rank.groups.index(group))
    step = rank.collectives.step[rows].astype(np.int64)
    starts = np.concatenate([[True], step[1:] != step[:-1]])
    first = np.maximum.accumulate(np.where(starts, np.arange(len(rows)), 0))
    key = (step + 1) * _PER_STEP + np.arange(len(rows)) - first
    order = np.argsort(key, kind="stable")
    return key[order], rows[order]


def _clocks(
    ranks: Sequence[RankMeasurement], groups: Sequence[SharedCollectives]
) -> tuple[Ints, float, int]:
    """Clock offsets against the first rank, the remaining spread, and the number of ranks that
    share no collective.
    """
    offsets = np.zeros(len(ranks), np.int64)
    known = {0}
    left = list(groups)
    while left:
        reached = [group for group in left if known & set(group.ranks)]
        if not reached:
            break
        for group in reached:
            left.remove(group)
            anchor = next(i for i, index in enumerate(group.ranks) if index in known)
            base = ranks[group.ranks[anchor]].collectives.end[group.rows[anchor]]
            base = base - offsets[group.ranks[anchor]]
            for index, rows in zip(group.ranks, group.rows, strict=True):
                if index not in known:
                    ahead = ranks[index].collectives.end[rows] - base
                    offsets[index] = int(np.median(ahead))
                    known.add(index)
    return offsets, _spread(ranks, groups, offsets), len(ranks) - len(known)


def _spread(
    ranks: Sequence[RankMeasurement], groups: Sequence[SharedCollectives], offsets: Ints
) -> float:
    """Median seconds between the ends of one collective on its ranks."""
    spreads = []
    for group in groups:
        ends = [
            ranks[index].collectives.end[rows] - offsets[index]
            for index, rows in zip(group.ranks, group.rows, strict=True)
        ]
        spreads.append(np.max(ends, axis=0) - np.min(ends, axis=0))
    return float(np.median(np.concatenate(spreads))) / 1e9 if spreads else 0.0


def _group_waits(
    ranks: Sequence[RankMeasurement], group: SharedCollectives, offsets: Ints, last: Ints
) -> Iterator[tuple[int, _RankWaits]]:
    """Each rank of a group with its waits in the group's collectives; counts in `last` who came
    last.
    """
    places = np.array(group.ranks)
    arrivals = np.stack(
        [
            ranks[index].collectives.start[rows] - offsets[index]
            for index, rows in zip(group.ranks, group.rows, strict=True)
        ]
    )
    latest = arrivals.max(axis=0)
    alone = (arrivals == latest).sum(axis=0) == 1  # where all come at once, nobody is late
    culprit = places[arrivals.argmax(axis=0)]
    np.add.at(last, culprit[alone], 1)
    for index, rows in zip(group.ranks, group.rows, strict=True):
        done = ranks[index].collectives
        start, end = done.start[rows], done.end[rows]
        until = np.minimum(latest + offsets[index], end)
        others = (culprit != index) & (until > start)
        yield (
            index,
            _RankWaits(
                start=start[others],
                until=until[others],
                culprit=culprit[others],
                step=done.step[rows][others],
            ),
        )


def _exposed(exposed: Intervals, waits: Sequence[_RankWaits]) -> Iterator[tuple[int, int, float]]:
    """Culprit, step and exposed seconds; where collectives overlap, the first one has the time."""
    start, until, culprit, step = (
        np.concatenate([getattr(part, name) for part in waits])
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
