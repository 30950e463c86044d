"""Who waited for whom: `find_waits` matches the collectives of all ranks by group and sequence number.

A rank waits from its own arrival to that of the last rank. A blocking collective costs it that time;
one that runs beside the computation (the rank comes to its next collective before the last rank has
come to this one) costs it only at the end of its phase, where the rank waits for the last of them:
DDP's last bucket at the end of the backward pass. Reductions that a group does in backward passes alone
are of gradients, and beside; so are those that a device times, on a stream of its own.

Neglected: waits for such a collective in the middle of a phase, which only a trace shows; computation
between the last such arrival and the end of its phase. A broadcast is taken to come from the first
member of its group, as DDP's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.run_folders.arrivals import UNKNOWN, Arrivals
from computeflow.telemetry.run_folders.clocks import phase_ends, phase_kinds
from computeflow.telemetry.run_folders.phases import BACKWARD, FORWARD, Ints
from computeflow.telemetry.run_folders.rank_file import Pieces

_REGULARLY = 0.05
"""Share of a group's collectives in which the rank goes on before the last one has come, from which on
they are not blocking: of blocking ones it is none."""
_NOTICED = 200
"""Microseconds of a wait from which on it tells whether its rank went on."""
_FROM_ONE = ("broadcast", "scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Exposed waits and transfers of one rank, in order of time and without overlap."""

    start: Ints
    end: Ints
    culprit: Ints
    """Index of the rank that came last."""
    transfer_start: Ints
    transfer_end: Ints

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWaits:
    ranks: tuple[Waits, ...]
    matched: int
    """Collectives of which all ranks were seen."""
    came_last: tuple[int, ...]
    last_sequence: dict[str, tuple[int, ...]]
    """The last sequence number of each rank, by group; -1 for ranks that are not in it."""
    sampled: bool


def find_waits(pieces: Sequence[Pieces], arrivals: Sequence[Arrivals]) -> RunWaits:
    """Waits of ranks whose times are on one clock."""
    until = [np.full(len(some), UNKNOWN, np.int64) for some in arrivals]
    culprit = [np.full(len(some), UNKNOWN, np.int64) for some in arrivals]
    came_last = np.zeros(len(arrivals), np.int64)
    matched, sequences = 0, dict[str, tuple[int, ...]]()
    for name in dict.fromkeys(name for some in arrivals for name, _ in some.groups):
        table = _rows_of(name, arrivals)
        sequences[name] = tuple(
            int(some.sequence[rows].max()) if len(rows) else UNKNOWN
            for some, rows in zip(arrivals, table, strict=True)
        )
        matched += _match(arrivals, table, until, culprit, came_last)
    return RunWaits(
        ranks=tuple(
            _exposed(pieces[rank], some, until[rank], culprit[rank])
            for rank, some in enumerate(arrivals)
        ),
        matched=matched,
        came_last=tuple(int(count) for count in came_last),
        last_sequence=sequences,
        sampled=any(bool((some.every > 1).any()) for some in arrivals),
    )


def _rows_of(name: str, arrivals: Sequence[Arrivals]) -> list[Ints]:
    """Rows of each rank in the group of this name, whatever the operation."""
    found = []
    for some in arrivals:
        places = [place for place, key in enumerate(some.groups) if key[0] == name]
        rows = np.isin(some.group, places) if places else np.zeros(0, bool)
        found.append(np.flatnonzero(rows))
    return found


def _match(
    arrivals: Sequence[Arrivals],
    table: Sequence[Ints],
    until: Sequence[Ints],
    culprit: Sequence[Ints],
    came_last: Ints,
) -> int:
    """Fill in the last arrival and its rank for collectives that all members were seen in."""
    members = [rank for rank, rows in enumerate(table) if len(rows)]
    if len(members) < 2:
        return 0
    rank = np.concatenate([np.full(len(table[index]), index) for index in members])
    row = np.concatenate([table[index] for index in members])
    number = np.concatenate([arrivals[index].sequence[table[index]] for index in members])
    at = np.concatenate([arrivals[index].at[table[index]] for index in members])
    one = np.concatenate([_is_from_one(arrivals[index], table[index]) for index in members])
    at = np.where(one & (rank != members[0]), np.iinfo(np.int64).min, at)
    order = np.lexsort((at, number))
    rank, row, number, at = rank[order], row[order], number[order], at[order]
    first = np.flatnonzero(np.concatenate([[True], number[1:] != number[:-1]]))
    count = np.diff(np.concatenate([first, [len(number)]]))
    last = first + count - 1
    complete = count == len(members)
    of = np.repeat(np.arange(len(first)), count)
    for index in members:
        mine = np.flatnonzero((rank == index) & complete[of])
        until[index][row[mine]] = at[last[of[mine]]]
        culprit[index][row[mine]] = rank[last[of[mine]]]
    np.add.at(came_last, rank[last[complete]], 1)
    return int(complete.sum())


def _is_from_one(arrivals: Arrivals, rows: Ints) -> NDArray[np.bool_]:
    places = [
        place
        for place, (_, operation) in enumerate(arrivals.groups)
        if any(word in operation for word in _FROM_ONE)
    ]
    return np.isin(arrivals.group[rows], places)


def _exposed(pieces: Pieces, arrivals: Arrivals, until: Ints, culprit: Ints) -> Waits:
    """What of a rank's waits keeps it from its work."""
    at, count = arrivals.at, len(arrivals)
    following = np.concatenate([at[1:], [np.iinfo(np.int64).max]])[:count]
    beside = _beside(pieces, arrivals, until, following)
    phase = phase_ends(pieces, at)
    keeps = np.ones(count, bool)
    if count:
        keeps[:-1] = ~beside[:-1] | (phase[:-1] != phase[1:])
    limit = np.where(beside, phase, following)
    known = until != UNKNOWN
    end = np.where(known, np.minimum(until, limit), at)
    chosen = known & keeps & (end > at)
    ends = np.where(arrivals.end == UNKNOWN, at, np.minimum(arrivals.end, limit))
    begin = np.where(known, np.maximum(at, until), at)
    moved = keeps & (ends > begin)
    start, stop = at[chosen], end[chosen]
    stop = np.minimum(stop, np.concatenate([start[1:], [np.iinfo(np.int64).max]])[: len(stop)])
    return Waits(
        start=start,
        end=stop,
        culprit=culprit[chosen],
        transfer_start=begin[moved],
        transfer_end=ends[moved],
    )


def _beside(pieces: Pieces, arrivals: Arrivals, until: Ints, following: Ints) -> NDArray[np.bool_]:
    """Which collectives run beside the computation, by how they behave in this phase."""
    if arrivals.timed or not len(arrivals):
        return np.ones(len(arrivals), bool)
    phase = phase_kinds(pieces, arrivals.at)
    back = phase == BACKWARD
    key = 2 * arrivals.group + back
    keys = 2 * len(arrivals.groups)
    waits = (until != UNKNOWN) & (until - arrivals.at > _NOTICED)
    went_on = np.bincount(key, waits & (following < until), keys)
    regularly = went_on > _REGULARLY * np.bincount(key, waits, keys)
    forward = np.bincount(arrivals.group, phase == FORWARD, len(arrivals.groups))
    return np.asarray(regularly[key] | (back & (forward[arrivals.group] == 0)))
