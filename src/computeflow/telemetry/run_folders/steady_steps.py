"""Figures of steady steps: without the first ones, which warm up, and without profiled ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.run_folders.attempt_time import AttemptTime, RankTime
from computeflow.telemetry.run_folders.phases import PARTS, Ints, account_of
from computeflow.telemetry.run_folders.rank_file import Floats
from computeflow.telemetry.run_folders.run_facts import Excess, StepGrowth

_SIGMA = 1.4826
"""The standard deviation of normal values over their median absolute deviation."""
_WARM = 1.5
"""Times the median step that the first steps may take while they warm up or compile."""
_FEW = 8
"""Ranks up to which each is compared with the others; of more, with the median of all."""
_BLOCKS = 12
_MIN_GROWTH_STEPS = 60
"""Fewest steady steps that can show growth: five in each block."""
_UNEVEN_TOKENS = 0.01
Rows = NDArray[np.bool_]


def median_of(values: Floats | Ints) -> float:
    """What `np.median` gives of numbers, at a tenth of its cost for the few steps of a rank."""
    ordered, middle = np.sort(values), len(values) // 2
    return float((ordered[(len(values) - 1) // 2] + ordered[middle]) / 2)


def spread_of(values: Floats) -> float:
    if not len(values):
        return 0.0
    return _SIGMA * median_of(np.abs(values - median_of(values)))


def steady_rows(rank: RankTime) -> Rows:
    """Steps that count: not the first ones, not those that a profiler slows."""
    steps = rank.steps
    rows = ~steps.profiled & (rank.parts[:, PARTS.index("profiler")] == 0)
    rows[:1] = False
    length = (steps.end - steps.begin).astype(np.float64)
    if rows.any():
        slow = length > _WARM * median_of(length[rows])
        warm = int(np.argmin(slow[1:])) if not slow[1:].all() else 0
        rows[: 1 + warm] = False
    return np.asarray(rows)


def lengths(rank: RankTime, rows: Rows) -> Floats:
    return (rank.steps.end - rank.steps.begin)[rows] / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyRank:
    """A rank of an attempt and its steps that count."""

    time: RankTime
    rows: Rows
    lengths: Floats
    """Seconds of these steps."""
    parts: Floats
    """Microseconds of these steps by `PARTS`."""
    tokens: Ints


def steady_ranks(attempt: AttemptTime) -> list[SteadyRank]:
    return [_steady(rank) for rank in attempt.ranks]


def _steady(rank: RankTime) -> SteadyRank:
    rows = steady_rows(rank)
    return SteadyRank(
        time=rank,
        rows=rows,
        lengths=lengths(rank, rows),
        parts=rank.parts[rows],
        tokens=rank.steps.tokens[rows],
    )


class CommonSteps:
    """Steady steps that all ranks of an attempt have."""

    def __init__(self, steady: Sequence[SteadyRank]) -> None:
        kept = [rank.time.steps.number[rank.rows] for rank in steady if len(rank.time.steps)]
        self.ranks = [rank.time for rank in steady if len(rank.time.steps)]
        common = kept[0] if kept else np.zeros(0, np.int64)
        for other in kept[1:]:
            if not np.array_equal(common, other):
                common = np.intersect1d(common, other)
        self.rows: list[Ints] = [np.searchsorted(rank.steps.number, common) for rank in self.ranks]
        self.count = len(common)

    def excess(self) -> dict[int, Excess]:
        """Each rank's own time beyond that of the others."""
        if len(self.ranks) < 2 or not self.count:
            return {}
        own = np.array([rank.own[rows] for rank, rows in zip(self.ranks, self.rows, strict=True)])
        parts = np.array(
            [
                rank.parts[rows].mean(axis=0)
                for rank, rows in zip(self.ranks, self.rows, strict=True)
            ]
        )
        if len(own) > _FEW:
            excess = _excess_of_many(own, parts)
        else:
            excess = [_excess_of_few(own, parts, index) for index in range(len(own))]
        return {rank.rank: each for rank, each in zip(self.ranks, excess, strict=True)}

    def growth(self) -> StepGrowth | None:
        if self.count < _MIN_GROWTH_STEPS:
            return None
        first, rows = self.ranks[0], self.rows[0]
        length = (first.steps.end - first.steps.begin)[rows] / 1e6
        tokens = sum(
            np.maximum(rank.steps.tokens, 0)[mine].astype(np.float64)
            for rank, mine in zip(self.ranks, self.rows, strict=True)
        )
        work = np.asarray(tokens)
        per_token = bool(work.min() > 0 and spread_of(work) > _UNEVEN_TOKENS * np.median(work))
        scaled = length / work * np.median(work) if per_token else length
        blocks = np.array([np.median(part) for part in np.array_split(scaled, _BLOCKS)])
        third = _BLOCKS // 3
        early, late = blocks[:third], blocks[-third:]
        usual = float(np.median(early))
        return StepGrowth(
            early_seconds=usual,
            late_seconds=float(np.median(late)),
            noise_seconds=max(spread_of(early), spread_of(late)),
            apart=bool(late.min() > early.max()),
            account=self._grown(third),
            lost_seconds=float(np.maximum(scaled - usual, 0.0).sum()) * len(self.ranks),
            per_token=per_token,
        )

    def _grown(self, third: int) -> str:
        """The account that grew most from the first third of the steps to the last."""
        edge = self.count * third // _BLOCKS
        more: dict[str, float] = {}
        for rank, rows in zip(self.ranks, self.rows, strict=True):
            change = rank.parts[rows[-edge:]].mean(axis=0) - rank.parts[rows[:edge]].mean(axis=0)
            for part, micros in zip(PARTS, change, strict=True):
                name = account_of(part)
                more[name] = more.get(name, 0.0) + float(micros)
        return max(more, key=lambda name: more[name])


def _excess_of_few(own: Floats, parts: Floats, index: int) -> Excess:
    others = np.arange(len(own)) != index
    over = own[index] - np.median(own[others], axis=0)
    more = parts[index] - np.median(parts[others], axis=0)
    return _excess(over, more)


def _excess_of_many(own: Floats, parts: Floats) -> list[Excess]:
    over = own - np.median(own, axis=0)
    more = parts - np.median(parts, axis=0)
    return [_excess(over[index], more[index]) for index in range(len(own))]


def _excess(over: Floats, more: Floats) -> Excess:
    """What a rank did beyond others: `over` by step, `more` by part."""
    return Excess(
        seconds=median_of(over) / 1e6,
        mean_seconds=float(over.mean()) / 1e6,
        spread_seconds=spread_of(over) / 1e6,
        steps=len(over),
        by_part={PARTS[place]: float(more[place]) / 1e6 for place in np.argsort(-more)},
    )


def part_medians(steady: Sequence[SteadyRank]) -> dict[str, float]:
    """Median seconds of a steady step, by part, over all ranks."""
    tables = [rank.parts for rank in steady]
    whole = np.concatenate(tables) if tables else np.zeros((0, len(PARTS)))
    if not len(whole):
        return {}
    middle = np.median(whole, axis=0) / 1e6
    return {part: float(value) for part, value in zip(PARTS, middle, strict=True) if value > 0}
