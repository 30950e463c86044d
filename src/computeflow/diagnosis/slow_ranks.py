"""Ranks that keep the others waiting: `find_slow_ranks`.

A rank is to blame if the step would be shorter had it done no more than the others: all ranks are
replayed together without what it did beyond them. Being slower alone is not enough.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.replay.profiler_cost import Range
from computeflow.replay.rank_gains import RankGains
from computeflow.replay.rank_lines import rank_lines
from computeflow.telemetry.traces.collective_waits import CollectiveWaits
from computeflow.telemetry.traces.rank_measurements import RankMeasurement

LEAST = 0.02
"""Least share of the step that must be won at the low end of the range."""
LEAST_OF_FEW = 0.05
"""The same where fewer than `_MANY` other ranks show what is usual: on a busy host, two equal ranks
differ by up to 4 % of their step in every step (benchmarks/ranks, ddp_small)."""
_MANY = 3
LEAST_BY_TURNS = 0.05
"""The same of ranks that are late by turns: equal ranks on a busy host are so by 2 %."""
_MAX_SUSPECTS = 64
"""Most ranks that are looked at, the slowest first: each takes a replay."""
_SLOWER = 0.01
"""Least share of the step by which a suspect is slower than usual."""
_COMPARABLE = 0.25
"""Least share of the slowest rank's excess that another slow one has."""
_FAR = 4.0
"""Standard errors by which a slow rank's own time is beyond that of the others."""
_LITTLE, _LITTLE_OF_ALL = 0.02, 0.2
"""Share of the step, and of what all slow ranks together cost, that each of them must add to it."""
_MORE_WORK = 1.1
"""Ratio of a rank's operators to the others' from which its longer time is more work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRanks:
    places: tuple[int, ...]
    """Indexes of the slow ranks."""
    gain: Range
    excess: dict[str, float]
    """Their seconds in a step beyond the others, by account, the most first."""
    more_work: float
    """Operators of their work over those of the others, where that explains it; else 1."""
    wait_seconds: float
    """Seconds of the whole recording that all others waited for them."""
    waiting: int
    """How many ranks waited for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksTogether:
    """All ranks, replayed together."""

    step_seconds: float
    slow: SlowRanks | None
    uneven: Range | None
    """What is won if the ranks' work were the same in every step, where it differs by turns."""
    reduced_once: Range | None
    """What is won if gradients are reduced in the last backward pass of a step alone; None where they
    are."""
    in_pipeline: bool


def replay_together(
    ranks: Sequence[RankMeasurement], waits: CollectiveWaits
) -> tuple[RanksTogether | None, str]:
    """The ranks replayed together; or why they cannot be."""
    lines, why = rank_lines(ranks, waits)
    if lines is None:
        return None, why
    gains = RankGains(lines)
    if not gains.step_seconds > 0:
        return None, "the steps take no time"
    in_pipeline = any(wait.account == "comm.pp" for wait in waits.waits)
    slow, even = _find(ranks, waits, gains), gains.evened_out()
    by_turns = even.low >= LEAST_BY_TURNS and (slow is None or even.middle >= slow.gain.middle)
    has_more = slow is not None and in_pipeline and _is_division(slow)
    return (
        RanksTogether(
            step_seconds=gains.step_seconds,
            slow=None if by_turns else slow,
            uneven=even if by_turns or has_more else None,
            reduced_once=gains.reduced_once(),
            in_pipeline=in_pipeline,
        ),
        "",
    )


def _is_division(slow: SlowRanks) -> bool:
    """Whether slow stages of a pipeline have more of the model: they run more operators, or several
    compute longer, which the division of the layers explains better than several slow hosts do.
    """
    several = len(slow.places) > 1 and next(iter(slow.excess), "").startswith("compute")
    return slow.more_work > 1 or several


def _find(
    ranks: Sequence[RankMeasurement], waits: CollectiveWaits, gains: RankGains
) -> SlowRanks | None:
    own = gains.own_seconds
    suspects = _suspects(own, gains.step_seconds)
    if not suspects:
        return None
    suspects, gain = _to_blame(gains, suspects, own, len(ranks))
    if not _is_sure(gains, suspects, gain, len(ranks)) or len(suspects) > len(ranks) // 2:
        return None
    usual = [index for index in range(len(ranks)) if index not in suspects]
    excess: dict[str, float] = {}
    for rank in suspects:
        for account, seconds in gains.excess(rank, usual).items():
            excess[account] = excess.get(account, 0.0) + float(seconds[gains.whole].mean())
    return SlowRanks(
        places=tuple(sorted(suspects)),
        gain=gain,
        excess=dict(sorted(excess.items(), key=lambda item: -item[1])),
        more_work=_more_work(ranks, suspects),
        wait_seconds=sum(wait.seconds for wait in waits.waits if wait.culprit in suspects),
        waiting=len({wait.rank for wait in waits.waits if wait.culprit in suspects} - suspects),
    )


def _to_blame(
    gains: RankGains, suspects: set[int], own: NDArray[np.float64], count: int
) -> tuple[set[int], Range]:
    """The rank that costs most, with others that add to it; where several are equally slow none costs
    anything alone, and those are dropped that all together do not need.
    """
    alone = {rank: _without(gains, {rank}, count) for rank in suspects}
    worst = max(suspects, key=lambda rank: alone[rank].middle)
    if alone[worst].middle >= LEAST:
        chosen, gain = {worst}, alone[worst]
        for rank in sorted(suspects - chosen, key=lambda rank: -own[rank]):
            usual = [index for index in range(count) if index not in chosen | {rank}]
            if not usual:
                break
            if gains.mean_excess(rank, usual) < _COMPARABLE * gains.mean_excess(worst, usual):
                continue
            less, more = (_repaired(gains, each, usual) for each in (chosen, chosen | {rank}))
            if more.middle - less.middle >= max(_LITTLE, _LITTLE_OF_ALL * more.middle):
                chosen, gain = chosen | {rank}, more
        return chosen, gain
    gain = _without(gains, suspects, count)
    for rank in sorted(suspects, key=lambda rank: own[rank]):
        others = suspects - {rank}
        if not others:
            break
        left = _without(gains, others, count)
        if left.middle >= gain.middle - max(_LITTLE, _LITTLE_OF_ALL * gain.middle):
            suspects, gain = others, left
    return suspects, gain


def _is_sure(gains: RankGains, suspects: set[int], gain: Range, count: int) -> bool:
    """Whether the gain is no chance: the same in all steps, or by far more than the others' own time
    differs, though it may cost some steps only (those that wait for the rank).
    """
    others = [index for index in range(count) if index not in suspects]
    least = LEAST if len(others) >= _MANY else LEAST_OF_FEW
    if gain.low >= least:
        return True
    if not others or gain.middle < 2 * least:
        return False
    chance = _FAR * gains.spread(suspects, others) / gains.steps**0.5
    return all(gains.mean_excess(rank, others) > chance for rank in suspects)


def _suspects(own: NDArray[np.float64], step_seconds: float) -> set[int]:
    """Ranks with more time of their own than the faster half usually has."""
    usual = float(np.median(np.sort(own)[: (len(own) + 1) // 2]))
    slowest = np.argsort(-own, kind="stable")[:_MAX_SUSPECTS]
    return {int(index) for index in slowest if own[index] > usual + _SLOWER * step_seconds}


def _without(gains: RankGains, suspects: Collection[int], count: int) -> Range:
    """What is won if these ranks did no more than the others."""
    others = [index for index in range(count) if index not in suspects]
    if not others:
        return Range(low=0.0, middle=0.0, high=0.0)
    return _repaired(gains, suspects, others)


def _repaired(gains: RankGains, suspects: Collection[int], usual: Collection[int]) -> Range:
    return gains.without({rank: gains.excess(rank, usual) for rank in suspects})


def _more_work(ranks: Sequence[RankMeasurement], suspects: Collection[int]) -> float:
    """How many times the others' operators these ranks run, where their time grows like that."""
    ratios = []
    for index in suspects:
        mine = {row.name: row for row in ranks[index].kernels if row.work == "compute"}
        seconds = sum(row.seconds for row in mine.values())
        for row in mine.values():
            counts = [
                sum(other.count for other in ranks[i].kernels if other.name == row.name)
                for i in range(len(ranks))
                if i not in suspects
            ]
            usual = float(np.median(counts))
            if usual and row.seconds > 0.2 * seconds:
                ratios.append(row.count / usual)
    ratio = float(np.median(ratios)) if ratios else 1.0
    return ratio if ratio >= _MORE_WORK else 1.0
