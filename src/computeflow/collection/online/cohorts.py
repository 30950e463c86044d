"""Ranks against their peers, all of them at every step: `Cohort` names suspects.

A rank's work in a step is the time from the step's begin to its last arrival at a collective: all ranks
left the collective before together, so clocks of nodes cancel out, and waiting is not in it. Peers are
the members of that collective's group, which do the same work. How late a rank is, is its work beyond
the median of its peers, as a share of the step.

Every rank is late now and then. How often, and how often twice in a row, is counted for the run itself
(without its suspects); a rank is a suspect when its last steps were so late that in a sound run of so
many ranks one of them would be so in less than one step of a thousand. Suspects are then judged by the
rule book, together with others; here nothing is decided.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from computeflow.collection.wire.batches import Batch

_SLOTS = 64
"""Steps of a rank that are remembered; of more between two ticks, the last ones."""
_LATE_STEPS = 8
"""Steps in a row by which a rank is judged."""
_HEARD = 0.5
"""Share of the ranks that must have come to a step for others to be compared with them."""
_FEWEST_PEERS = 4
_LEAST = 0.02
"""Lateness that counts at all, as a share of the step."""
_DEVIATIONS = 4.0
_SIGMA = 1.4826
_CHANCE = 1e-3
"""Expected suspects of a sound run in one step."""
_EDGES = _LEAST * 1.25 ** np.arange(40)
"""Classes of lateness, from 2 % of a step to 120 times a step."""
_UNSEEN = 0.5
"""Count of a lateness that was never seen: half of one."""
_AGAIN, _OF = 0.1, 2.0
"""What is taken to have been late twice, of so many, before anything is known."""
LEAST_SECONDS = 2.0
"""What is over in less is no news."""
_MAX_SUSPECTS = 16
_MAX_PENDING = 4_000_000
_MAX_RANKS = 1 << 20
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Cohort:
    def __init__(self, world: int) -> None:
        self.world = world
        self._world = min(world, _MAX_RANKS)
        shape = self._world, _SLOTS
        self._number = np.full(shape, -1, np.int64)
        self._begin = np.zeros(shape, np.int64)
        self._end = np.zeros(shape, np.int64)
        self._work = np.zeros(shape, np.int64)
        self._group = np.full(shape, -1, np.int32)
        self._groups: dict[str, int] = {}
        self._pending: list[tuple[Ints, Ints, Ints]] = []
        self._late = np.zeros((self._world, _LATE_STEPS))
        """Lateness of the last steps, the newest first."""
        self._beyond = np.zeros((self._world, _LATE_STEPS), bool)
        """Which of these steps were late beyond chance: they say nothing of a sound run."""
        self._late_seconds = np.zeros(self._world)
        self._compared = np.zeros(shape, bool)
        self._steps = np.zeros(self._world, np.int64)
        """Steps of each rank that were compared."""
        self._rank_steps = 0
        self._once = np.zeros(len(_EDGES))
        self._twice = np.zeros(len(_EDGES))
        self._lasted = np.zeros(self._world, np.int64)
        self._since = np.zeros(self._world, np.int64)
        """Begin of the first step since which a rank is late; 0 where it is not."""
        self._unusual: list[int] = []
        """Ranks that are late beyond chance, for however short a time."""
        self._suspects: dict[int, int] = {}

    def take(self, batch: Batch) -> None:
        ranks = np.array([rows.rank for rows in batch.ranks], np.int64)
        if not len(ranks) or ranks.max() >= self._world:
            return
        if batch.steps:
            rank = np.repeat(ranks, [rows.steps for rows in batch.ranks])
            slot = batch.steps["number"] % _SLOTS
            self._number[rank, slot] = batch.steps["number"]
            self._begin[rank, slot] = batch.steps["begin"]
            self._end[rank, slot] = batch.steps["end"]
            self._work[rank, slot] = 0
            self._compared[rank, slot] = False
        if batch.arrivals and len(batch.arrivals["at"]):
            labels = [self._groups.setdefault(name, len(self._groups)) for name, _ in batch.groups]
            rank = np.repeat(ranks, [rows.arrivals for rows in batch.ranks])
            group = np.array(labels, np.int64)[batch.arrivals["group"]]
            self._pending.append((rank, batch.arrivals["at"].astype(np.int64), group))

    def tick(self) -> None:
        """Match the arrivals that came to their steps, and compare the steps that are complete."""
        self._settle()
        self._compare()

    def suspects(self) -> dict[int, int]:
        """Ranks that are late beyond chance, the latest first, with the steps that show it."""
        return self._suspects

    def late_seconds(self, rank: int) -> float | None:
        """Seconds that a rank was late in the last step; None where it was never compared."""
        compared = rank < self._world and self._steps[rank]
        return float(self._late_seconds[rank]) if compared else None

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
        """Compare the ranks that have come to a step since the last time, once most of them have."""
        heard = max(int((self._number >= 0).any(axis=1).sum()), 1)
        here = self._work > 0
        for step in np.unique(self._number[here & ~self._compared]).tolist():
            slot = step % _SLOTS
            present = here[:, slot] & (self._number[:, slot] == step)
            if present.sum() >= max(_HEARD * heard, _FEWEST_PEERS):
                self._compare_step(slot, present, present & ~self._compared[:, slot])

    def _compare_step(self, slot: int, present: NDArray[np.bool_], new: NDArray[np.bool_]) -> None:
        self._compared[new, slot] = True
        work, group = self._work[present, slot].astype(np.float64), self._group[present, slot]
        length = float(np.median(self._end[present, slot] - self._begin[present, slot]))
        if length <= 0:
            return
        excess = np.zeros(self._world)
        excess[present] = (work - _group_medians(work, group)) / length
        spread = _SIGMA * float(np.median(np.abs(excess[present])))
        late = np.where(excess >= max(_LEAST, _DEVIATIONS * spread), excess, 0.0)
        self._late_seconds[new] = excess[new] * length / 1e6
        self._count(new)
        self._late[new, 1:] = self._late[new, :-1]
        self._late[new, 0] = late[new]
        self._beyond[new, 1:] = self._beyond[new, :-1]
        self._beyond[new, 0] = False
        begins = new & (late > 0) & (self._since == 0)
        self._since[begins] = self._begin[begins, slot]
        self._since[new & (late == 0)] = 0
        self._lasted[new] = self._end[new, slot] - self._since[new]
        self._suspect()

    def _count(self, ranks: NDArray[np.bool_]) -> None:
        """Count how late ranks were, once and twice in a row, when it is known which of them are
        late beyond chance: a slow rank must not make its own lateness look usual.
        """
        sound = ranks & (self._steps >= _LATE_STEPS) & ~self._beyond[:, -2:].any(axis=1)
        sound[self._unusual] = False
        self._steps[ranks] += 1
        self._rank_steps += int(sound.sum())
        self._once += _histogram(self._late[sound, -1])
        self._twice += _histogram(self._late[sound, -2:].min(axis=1))

    def _suspect(self) -> None:
        candidates = np.flatnonzero((self._late[:, :2] > 0).all(axis=1))
        found: dict[int, tuple[float, int]] = {}
        least = np.minimum.accumulate(self._late[candidates], axis=1)
        for rank, lows in zip(candidates.tolist(), least, strict=True):
            for steps in range(2, _LATE_STEPS + 1):
                if lows[steps - 1] <= 0:
                    break
                if self._chance(float(lows[steps - 1]), steps) < _CHANCE:
                    found[rank] = float(lows[1]), steps
                    break
        self._unusual = list(found)
        self._beyond[self._unusual] |= self._late[self._unusual] > 0
        lasted = [rank for rank in found if self._lasted[rank] >= LEAST_SECONDS * 1e6]
        kept = sorted(lasted, key=lambda rank: -found[rank][0])[:_MAX_SUSPECTS]
        self._suspects = {rank: found[rank][1] for rank in kept}

    def _chance(self, lateness: float, steps: int) -> float:
        """Ranks of a sound run that are so late so many steps in a row, in one step."""
        kind = max(int(np.searchsorted(_EDGES, lateness, side="right")) - 1, 0)
        once, twice = float(self._once[kind:].sum()), float(self._twice[kind:].sum())
        rate = (once + _UNSEEN) / max(self._rank_steps, self._world)
        again = (twice + _AGAIN) / (once + _OF)
        return self._world * rate * float(again ** (steps - 1))


def _histogram(late: Floats) -> Floats:
    kinds = np.searchsorted(_EDGES, late[late >= _EDGES[0]], side="right") - 1
    return np.bincount(kinds, minlength=len(_EDGES))[: len(_EDGES)].astype(np.float64)


def _group_medians(values: Floats, group: NDArray[np.int32]) -> Floats:
    """The median of the values of each one's group."""
    order = np.lexsort((values, group))
    _, first, place, count = np.unique(
        group[order], return_index=True, return_inverse=True, return_counts=True
    )
    ordered = values[order]
    low, high = ordered[first + (count - 1) // 2], ordered[first + count // 2]
    medians = np.empty(len(values))
    medians[order] = ((low + high) / 2)[place]
    return medians
