"""Clocks of several hosts: `offsets_of` finds how far each is ahead, from collectives.

Ranks of one host share its clock. Between hosts, ranks leave a collective together: its end is the same
moment where the back end times it, else the end of the phase that waits for it. No rank leaves before
the last one has come, which bounds the offset from both sides. Clocks drift, so it is done block by
block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from computeflow.telemetry.run_folders.arrivals import UNKNOWN, Arrivals
from computeflow.telemetry.run_folders.phases import COLLECTION, HOLE, Ints
from computeflow.telemetry.run_folders.rank_file import Pieces, RankFile

_BLOCK = 256
"""Collectives of a block: some minutes of training, in which a clock drifts by a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """How far the clock of a host is ahead of the first one's, over time."""

    at: Ints
    ahead: Ints
    unsure: int
    """Microseconds either way."""

    def ahead_at(self, times: Ints) -> Ints:
        return np.rint(np.interp(times, self.at, self.ahead)).astype(np.int64)


SAME = ClockOffset(at=np.zeros(1, np.int64), ahead=np.zeros(1, np.int64), unsure=0)


def _phase_rows(pieces: Pieces, at: Ints) -> tuple[Ints, Ints]:
    """Rows of pieces that are no garbage collection, and which of these each moment lies in."""
    rows = np.flatnonzero(pieces.kind != COLLECTION)
    place = np.searchsorted(pieces.start[rows], at, side="right") - 1
    return rows, np.maximum(place, 0)


def phase_kinds(pieces: Pieces, at: Ints) -> Ints:
    """Kind of the phase that each moment lies in; a garbage collection inside does not end one."""
    rows, place = _phase_rows(pieces, at)
    return np.asarray(pieces.kind[rows[place]]) if len(rows) else np.full(len(at), HOLE)


def phase_ends(pieces: Pieces, at: Ints) -> Ints:
    """End of the phase that each moment lies in."""
    rows, place = _phase_rows(pieces, at)
    if not len(rows):
        return at
    kind, end = pieces.kind[rows], pieces.end[rows]
    ends_here = np.ones(len(rows), bool)
    ends_here[:-1] = kind[1:] != kind[:-1]
    last = np.flatnonzero(ends_here)
    return np.asarray(end[last[np.searchsorted(last, place)]])


def offsets_of(files: Sequence[RankFile]) -> tuple[dict[str, ClockOffset], list[str]]:
    """Offsets by host, and notes."""
    first = files[0].start.host
    known = {first: SAME}
    hosts = dict.fromkeys(file.start.host for file in files)
    for _ in hosts:  # each round reaches the hosts that share collectives with known ones
        for file in files:
            if file.start.host in known:
                continue
            for other in files:
                base = known.get(other.start.host)
                found = None if base is None else _between(other, file)
                if base is not None and found is not None:
                    ahead = found.ahead + base.ahead_at(found.at - found.ahead)
                    known[file.start.host] = ClockOffset(
                        at=found.at, ahead=ahead, unsure=found.unsure + base.unsure
                    )
                    break
    notes = []
    if len(known) > 1:
        unsure = max(offset.unsure for offset in known.values()) / 1e3
        notes.append(f"clocks of {len(known)} hosts are aligned by collectives, to {unsure:.2g} ms")
    if strangers := [host for host in hosts if host not in known]:
        notes.append(f"clocks of {len(strangers)} hosts cannot be aligned: no shared collectives")
    return {host: known.get(host, SAME) for host in hosts}, notes


def _between(one: RankFile, other: RankFile) -> ClockOffset | None:
    """How far the other's clock is ahead of one's."""
    for place, key in enumerate(one.arrivals.groups):
        if key not in other.arrivals.groups:
            continue
        mine, theirs = _matched(
            one.arrivals, place, other.arrivals, other.arrivals.groups.index(key)
        )
        if len(mine):
            return _offset(one, mine, other, theirs)
    return None


def _matched(one: Arrivals, place: int, other: Arrivals, there: int) -> tuple[Ints, Ints]:
    """Rows of collectives that both have."""
    mine, theirs = np.flatnonzero(one.group == place), np.flatnonzero(other.group == there)
    _, rows, columns = np.intersect1d(
        one.sequence[mine], other.sequence[theirs], return_indices=True
    )
    return mine[rows], theirs[columns]


def _offset(one: RankFile, mine: Ints, other: RankFile, theirs: Ints) -> ClockOffset:
    a, b = one.arrivals, other.arrivals
    at, left, left_there = b.at[theirs], _left(one, a, mine), _left(other, b, theirs)
    last = np.ones(len(at), bool)
    last[:-1] = (left[1:] != left[:-1]) & (left_there[1:] != left_there[:-1])
    low, high, apart = at - left, left_there - a.at[mine], left_there - left
    times, ahead, unsure = [], [], []
    for begin in range(0, len(at), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        together = apart[block][last[block]]
        bottom, top = int(low[block].max()), int(high[block].min())
        middle = float(np.median(together)) if len(together) else (bottom + top) / 2
        times.append(int(np.median(at[block])))
        ahead.append(round(min(max(middle, bottom), top) if bottom <= top else middle))
        unsure.append(
            float(np.median(np.abs(together - middle))) if len(together) else top - middle
        )
    return ClockOffset(
        at=np.array(times), ahead=np.array(ahead), unsure=round(float(np.median(unsure)))
    )


def _left(file: RankFile, arrivals: Arrivals, rows: Ints) -> Ints:
    """When the rank had left each collective, at the latest."""
    ends = arrivals.end[rows]
    return np.where(ends == UNKNOWN, phase_ends(file.pieces, arrivals.at[rows]), ends)


def shift(pieces: Pieces, offset: ClockOffset) -> Pieces:
    """The pieces on the first host's clock."""
    start = pieces.start - offset.ahead_at(pieces.start)
    end = pieces.end - offset.ahead_at(pieces.end)
    return Pieces(start=start, end=np.maximum(end, start), kind=pieces.kind)
