"""Collectives of one name that belong to several groups by turns, told apart by time: `groups_by_time`.

Tensor and data parallel ranks reduce among some ranks in their layers and among others after the
backward pass; gloo names neither. Every rank takes its collectives in order, and the ranks of a
group leave together. So the collective that ends next belongs to that group of its rank whose
members' next collectives are under way too, and end together soon after the last of them came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.traces.message_matching import TOLERANCE_NS
from computeflow.telemetry.traces.rank_measurements import RankMeasurement

Ints = NDArray[np.int64]
MAX_COLLECTIVES = 20_000
"""Most collectives of all ranks that are told apart: each takes up to 0.1 ms."""
_MAX_STATES = 16
"""Most ways that are followed beside each other. They differ only where the collectives of several
groups end within the same milliseconds, and meet again where a rank is late."""

_Places = tuple[int, ...]
"""How many collectives of each rank are taken."""
_Path = tuple["_Path", tuple[int, ...], _Places] | None
"""The groups that met, the last first, each with the places before it."""


def groups_by_time(
    ranks: Sequence[RankMeasurement], rows: Sequence[Ints], groups: Sequence[Sequence[int]]
) -> dict[tuple[int, ...], tuple[Ints, ...]]:
    """Rows of each group's ranks; nothing where the collectives do not divide among these groups."""
    if sum(map(len, rows)) > MAX_COLLECTIVES:
        return {}
    times = [
        (rank.collectives.start[mine].tolist(), rank.collectives.end[mine].tolist())
        for rank, mine in zip(ranks, rows, strict=True)
    ]
    sizes = tuple(map(len, rows))
    member_of = [
        [group for group in dict.fromkeys(map(tuple, groups)) if rank in group and len(group) > 1]
        for rank in range(len(ranks))
    ]
    ways: dict[_Places, tuple[int, _Path]] = {(0,) * len(ranks): (0, None)}
    while ways and sizes not in ways:
        following: dict[_Places, tuple[int, _Path]] = {}
        for places, (cost, path) in ways.items():
            for group, apart in _meetings(times, places, member_of):
                then = tuple(at + (rank in group) for rank, at in enumerate(places))
                if then not in following or cost + apart < following[then][0]:
                    following[then] = (cost + apart, (path, group, places))
        best = sorted(following.items(), key=lambda way: (way[1][0] / sum(way[0]), way[0]))
        ways = dict(best[:_MAX_STATES])
    return _chosen(ways[sizes][1], rows) if sizes in ways else {}


def _meetings(
    times: Sequence[tuple[list[int], list[int]]],
    places: _Places,
    member_of: Sequence[Sequence[tuple[int, ...]]],
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Groups of the rank whose next collective ends first, and what speaks against each: time that its
    ranks stay after the last of them came, and after the first of them left.
    """
    left = [rank for rank, at in enumerate(places) if at < len(times[rank][0])]
    first = min(left, key=lambda rank: times[rank][1][places[rank]])
    for group in member_of[first]:
        if any(places[rank] >= len(times[rank][0]) for rank in group):
            continue
        came = max(times[rank][0][places[rank]] for rank in group)
        ends = [times[rank][1][places[rank]] for rank in group]
        if came <= min(ends) + TOLERANCE_NS:
            yield group, sum(max(end - came, 0) + end - min(ends) for end in ends)


def _chosen(path: _Path, rows: Sequence[Ints]) -> dict[tuple[int, ...], tuple[Ints, ...]]:
    taken: dict[tuple[int, ...], list[list[int]]] = {}
    while path is not None:
        path, group, places = path
        taken.setdefault(group, []).append([int(rows[rank][places[rank]]) for rank in group])
    return {
        group: tuple(np.array(side, np.int64) for side in zip(*reversed(met), strict=True))
        for group, met in sorted(taken.items())
    }
