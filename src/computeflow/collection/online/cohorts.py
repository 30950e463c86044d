"""Ranks of a large run against their peers, all of them at every tick: `Cohort`.

A rank's work in a step is the time from the step's begin to its last arrival at a collective: all ranks
left the collective before together, so clocks of nodes cancel out, and waiting is not in it. Peers are
the members of that collective's group, which do the same work. A rank is a suspect where its work is
beyond the median of its peers by 2 % of the step and by four robust deviations in each of the last
steps. Suspects are then judged by the rule book, together with others; here nothing is decided.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from computeflow.collection.wire.batches import Batch

_SLOTS = 8
"""Steps of a rank that are remembered."""
_STEPS = 2
"""Steps in each of which a suspect is late."""
_HEARD = 0.8
"""Share of the ranks that must have come to a step for it to count."""
_LEAST = 0.02
_DEVIATIONS = 4.0
_SIGMA = 1.4826
_MAX_SUSPECTS = 16
_MAX_PENDING = 4_000_000
_MAX_RANKS = 1 << 20
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Cohort:
    def __init__(self, world: int) -> None:
        self._world = min(world, _MAX_RANKS)
        shape = self._world, _SLOTS
        self._number = np.full(shape, -1, np.int64)
        self._begin = np.zeros(shape, np.int64)
        self._end = np.zeros(shape, np.int64)
        self._work = np.zeros(shape, np.int64)
        self._group = np.full(shape, -1, np.int32)
        self._groups: dict[str, int] = {}
        self._pending: list[tuple[Ints, Ints, Ints]] = []
        self._suspects: list[int] = []
        self._late = np.zeros(self._world)
        """Seconds that each rank was late in the last steps."""

    def take(self, batch: Batch) -> None:
        ranks = np.array([rows.rank for rows in batch.ranks], np.int64)
        if len(ranks) and ranks.max() >= self._world:
            return
        if batch.steps:
            rank = np.repeat(ranks, [rows.steps for rows in batch.ranks])
            slot = batch.steps["number"] % _SLOTS
            self._number[rank, slot] = batch.steps["number"]
            self._begin[rank, slot] = batch.steps["begin"]
            self._end[rank, slot] = batch.steps["end"]
            self._work[rank, slot] = 0
        if batch.arrivals and len(batch.arrivals["at"]):
            labels = [self._groups.setdefault(name, len(self._groups)) for name, _ in batch.groups]
            rank = np.repeat(ranks, [rows.arrivals for rows in batch.ranks])
            group = np.array(labels, np.int64)[batch.arrivals["group"]]
            self._pending.append((rank, batch.arrivals["at"].astype(np.int64), group))

    def tick(self) -> None:
        """Match the arrivals that came to their steps, and compare the last steps."""
        self._settle()
        self._compare()

    def suspects(self) -> list[int]:
        """Ranks that are late, the latest first."""
        return self._suspects

    def late_seconds(self, rank: int) -> float | None:
        return float(self._late[rank]) if rank < self._world else None

    def _settle(self) -> None:
        if not self._pending:
            return
        rank, at, group = (np.concatenate(part) for part in zip(*self._pending, strict=True))
        order = np.argsort(at, kind="stable")  # the last arrival of a step names its group
        rank, at, group = rank[order], at[order], group[order]
        inside = (self._begin[rank] <= at[:, None]) & (at[:, None] < self._end[rank])
        found = inside.any(axis=1)
        slot = np.argmax(inside, axis=1)[found]
        who = rank[found]
        np.maximum.at(self._work, (who, slot), at[found] - self._begin[who, slot])
        self._group[who, slot] = group[found]
        later = ~found & (at >= self._end[rank].max(axis=1))
        rest = np.flatnonzero(later)[-_MAX_PENDING:]
        self._pending = [(rank[rest], at[rest], group[rest])] if len(rest) else []

    def _compare(self) -> None:
        steps = self._known_steps()
        if len(steps) < _STEPS:
            return
        late, sure = np.full((len(steps), self._world), np.nan), np.ones(self._world, bool)
        for row, step in enumerate(steps):
            late[row], bar = self._lateness(step)
            sure &= np.nan_to_num(late[row], nan=-1.0) > bar
        mean = np.nanmean(np.where(np.isnan(late), 0.0, late), axis=0)
        self._late = mean / 1e6
        worst = np.flatnonzero(sure)
        worst = worst[np.argsort(-mean[worst], kind="stable")]
        self._suspects = [int(rank) for rank in worst[:_MAX_SUSPECTS]]

    def _known_steps(self) -> list[int]:
        """The last steps that most ranks have arrived in."""
        heard = max(int((self._number >= 0).any(axis=1).sum()), 1)
        known = self._number[self._work > 0]
        numbers, counts = np.unique(known, return_counts=True)
        return [int(number) for number in numbers[counts >= _HEARD * heard][-_STEPS:]]

    def _lateness(self, step: int) -> tuple[Floats, float]:
        """Microseconds beyond the median of each rank's peers, and the bar of a suspect."""
        slot = step % _SLOTS
        here = (self._number[:, slot] == step) & (self._work[:, slot] > 0)
        work, group = self._work[here, slot].astype(np.float64), self._group[here, slot]
        excess = work - _group_medians(work, group)
        length = float(np.median(self._end[here, slot] - self._begin[here, slot]))
        deviation = _SIGMA * float(np.median(np.abs(excess)))
        late = np.full(self._world, np.nan)
        late[here] = excess
        return late, max(_LEAST * length, _DEVIATIONS * deviation)


def _group_medians(values: Floats, group: NDArray[np.int32]) -> Floats:
    """The median of the values of each one's group."""
    order = np.lexsort((values, group))
    kinds, first, place, count = np.unique(
        group[order], return_index=True, return_inverse=True, return_counts=True
    )
    ordered = values[order]
    low, high = ordered[first + (count - 1) // 2], ordered[first + count // 2]
    medians = np.empty(len(values))
    medians[order] = ((low + high) / 2)[place]
    return medians if len(kinds) else values
