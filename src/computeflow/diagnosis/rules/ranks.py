"""Rules on ranks that differ: slower at equal work, or with more work."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TypeVar

from computeflow.diagnosis.remedies import command
from computeflow.diagnosis.robust import median_and_spread
from computeflow.diagnosis.rule import Draft, Outcome, report, seconds_evidence
from computeflow.diagnosis.rules.ranks_together import (
    EVEN_WORK,
    kept_waiting,
    missing_ranks,
    seen_elsewhere,
    uneven_work,
)
from computeflow.diagnosis.slow_ranks import SlowRanks
from computeflow.diagnosis.trace_case import DEVIATIONS, PRACTICAL, TraceCase
from computeflow.ledger import Evidence, Remedy
from computeflow.telemetry.traces.job_ledgers import OWN_ACCOUNTS
from computeflow.telemetry.traces.rank_measurements import RankMeasurement

_EXPLAINED = 0.7
"""Share of a rank's longer compute that its FLOPs must explain to be more work, not slowness."""
FEW = 4
_FEW_SHARE = 0.06
"""Least share of the window spent waiting for one of fewer than `FEW` ranks: so few have no usual time
to compare with; two equal ranks on one host waited up to 4.5 % for each other (gloo_traces)."""
_MAX_WAITS = 0.7
"""Least share of all waits that must be for one rank, where there are few ranks."""
STEPS = 4
"""Fewest steps that show how much steps vary."""
FAR = 6.0
"""Robust deviations of the ranks' own time beyond which a rank is an outlier."""
_ROOTS = {
    "gc": "garbage collection",
    "sync": "waits for the device",
    "input": "the loader",
    "launch": "late launches",
    "optimizer": "late launches",
}

Key = TypeVar("Key", int, str)


def straggler_rank(case: TraceCase) -> Outcome:
    """One finding for all slow ranks: repairing one gains little while another is slow."""
    if (missing := missing_ranks(case, "straggler")) is not None:
        return missing
    if case.together is not None:
        slow_ranks = case.together.slow
        if slow_ranks is None or case.together.uneven is not None or _by_flops(case, slow_ranks):
            return []
        return kept_waiting(case, case.together, slow_ranks)
    caused = _sum(
        (entry.cause.rank, entry.gpu_seconds)
        for entry in case.ledger.entries
        if entry.account == "straggler" and entry.cause is not None
    )
    slow = _slow_ranks(case, caused)
    wait = sum(caused.get(rank.rank, 0.0) for rank in slow)
    least = _FEW_SHARE if len(case.ranks) < FEW else PRACTICAL
    if not slow or wait < least * case.ledger.gpu_seconds:
        return []
    return _straggler(case, slow, wait)


def _by_flops(case: TraceCase, slow: SlowRanks) -> bool:
    """Whether more FLOPs explain that these ranks take longer, and so most of the waits for them."""
    if case.ledger.booked("imbalance") <= 0.5 * slow.wait_seconds:
        return False
    others = [rank for place, rank in enumerate(case.ranks) if place not in slow.places]
    ranks = [case.ranks[place] for place in slow.places]
    flops = _ratio([rank.flops for rank in ranks], [rank.flops for rank in others])
    seconds = _ratio([_computing(rank) for rank in ranks], [_computing(rank) for rank in others])
    return flops - 1 >= _EXPLAINED * (seconds - 1)


def _ratio(ours: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(ours) / (statistics.median(others) or math.inf)


def _computing(rank: RankMeasurement) -> float:
    return rank.accounts.get("compute", 0.0)


def _sum(parts: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    total: dict[Key, float] = {}
    for key, seconds in parts:
        total[key] = total.get(key, 0.0) + seconds
    return total


def _slow_ranks(case: TraceCase, caused: dict[int, float]) -> list[RankMeasurement]:
    """Ranks slower than the faster half; of few ranks, the one that all wait for."""
    if len(case.ranks) < FEW:
        return _slow_of_few(case, caused)
    faster = sorted(_own(rank) for rank in case.ranks)[: (len(case.ranks) + 1) // 2]
    middle, spread = median_and_spread(faster)
    far = middle + max(FAR * spread, PRACTICAL * middle)
    return [rank for rank in case.ranks if _own(rank) > far]


def _slow_of_few(case: TraceCase, caused: dict[int, float]) -> list[RankMeasurement]:
    most = max(caused, key=lambda rank: caused[rank], default=-1)
    if most < 0 or caused[most] <= _MAX_WAITS * sum(caused.values()):
        return []
    slow = [rank for rank in case.ranks if rank.rank == most]
    others = [rank for rank in case.ranks if rank.rank != most]
    return [rank for rank in slow if _later_each_step(rank, others)]


def _later_each_step(rank: RankMeasurement, others: Sequence[RankMeasurement]) -> bool:
    """Whether a rank is slower than the others by more than the variation from step to step."""
    mine = _own_by_step(rank)
    usual = [statistics.median(values) for values in zip(*map(_own_by_step, others), strict=False)]
    over = [own - other for own, other in zip(mine, usual, strict=False)]
    if len(over) < STEPS:  # too few to tell
        return True
    middle, spread = median_and_spread(over)
    return bool(middle > DEVIATIONS * spread / len(over) ** 0.5)


def _own_by_step(rank: RankMeasurement) -> list[float]:
    parts = [rank.by_step[name] for name in OWN_ACCOUNTS if name in rank.by_step]
    return [sum(values) for values in zip(*parts, strict=True)]


def _own(rank: RankMeasurement) -> float:
    """Seconds that are not spent in communication."""
    return sum(rank.accounts.get(name, 0.0) for name in OWN_ACCOUNTS)


def _straggler(case: TraceCase, slow: list[RankMeasurement], wait: float) -> list[Draft]:
    names = sorted(rank.rank for rank in slow)
    more, reasons = _excess_of_all(case, slow)
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    several = len(slow) > 1
    who = f"rank{'s' if several else ''} {', '.join(map(str, names))}"
    worst, extra = max(slow, key=_own), sum(more.values())
    return report(
        _title(case, names, who, [(name, part / extra) for name, part in ordered[:3]]),
        [("straggler", wait), *more.items()],
        [
            seconds_evidence(f"waits for {who}", case.where("account straggler"), wait, 0.0),
            *(
                seconds_evidence(
                    f"{who} spent more time than the others: {name}", worst.source, seconds
                )
                for name, seconds in ordered
            ),
            *(evidence for rank in slow for evidence in seen_elsewhere(case, rank)),
        ],
        Remedy(
            change=_advice(case, ordered[0][0] if ordered else "", worst.rank),
            gain_gpu_seconds=wait + extra,
            gain_low=0.0 if several else wait,
            gain_high=wait + extra,
            risk="gained only when all of them are repaired" if several else "",
        ),
        ranks=names,
    )


def _excess_of_all(
    case: TraceCase, slow: Sequence[RankMeasurement]
) -> tuple[dict[str, float], dict[str, float]]:
    """Time of slow ranks beyond the median of the others: by account, and by cause."""
    names = {rank.rank for rank in slow}
    others = [rank for rank in case.ranks if rank.rank not in names]
    excess = [(rank, _excess(case, rank, others)) for rank in slow]
    return (
        _sum(part for _, accounts in excess for part in accounts.items()),
        _sum(
            part
            for rank, accounts in excess
            for account, seconds in accounts.items()
            for part in _reasons(rank, others, account, seconds).items()
        ),
    )


def _title(
    case: TraceCase, names: Sequence[int], who: str, reasons: Sequence[tuple[str, float]]
) -> str:
    waiting = sum(
        any(
            entry.account == "straggler" and entry.cause and entry.cause.rank in names
            for entry in part.ledger.entries
        )
        for part in case.audit.job.ranks
    )
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in reasons)
    return f"{waiting} rank{'s wait' if waiting > 1 else ' waits'} for {who}" + (
        f": {shares}" if shares else ""
    )


def _excess(
    case: TraceCase, rank: RankMeasurement, others: Sequence[RankMeasurement]
) -> dict[str, float]:
    """Time of this rank beyond the median of the others, by account."""
    excess = {}
    for name in OWN_ACCOUNTS:
        usual = statistics.median(other.accounts.get(name, 0.0) for other in others)
        over = rank.accounts.get(name, 0.0) - usual
        if over > 0.01 * _own(rank):
            counted = name == "compute" and case.ledger.booked("compute.kernel") > 0
            excess["compute.kernel" if counted else name] = over
    return excess


def _reasons(
    rank: RankMeasurement, others: Sequence[RankMeasurement], account: str, seconds: float
) -> dict[str, float]:
    """An account's excess by cause: slower kernels, garbage collection, the loader, the host."""
    if account == "host":
        return _by_root(rank, others, seconds)
    if account == "input":
        return {"the loader": seconds}
    if account.startswith("compute"):
        slower = _kernel_ratio(rank, others)
        what = f"kernels {100 * (slower - 1):.0f} % slower" if slower > 1.02 else "more kernels"
        return {what: seconds}
    return {account: seconds}


def _by_root(
    rank: RankMeasurement, others: Sequence[RankMeasurement], seconds: float
) -> dict[str, float]:
    """The host's lateness by cause, in all no more than `seconds`."""
    over = {
        root: own - statistics.median(other.signals.setbacks.get(root, 0.0) for other in others)
        for root, own in rank.signals.setbacks.items()
    }
    roots = _sum(
        (_ROOTS.get(root, root), part) for root, part in over.items() if part > 0.05 * seconds
    )
    most = sum(roots.values())
    shrink = min(1.0, seconds / most) if most else 1.0
    return {name: shrink * part for name, part in roots.items()} or {"host": seconds}


def _kernel_ratio(rank: RankMeasurement, others: Sequence[RankMeasurement]) -> float:
    """Median ratio of the rank's mean duration to the others' median, over kernels that both have."""
    usual: dict[str, list[float]] = {}
    for other in others:
        for row in other.kernels:
            if row.work == "compute":
                usual.setdefault(row.name, []).append(row.seconds / row.count)
    ratios = [
        row.seconds / row.count / statistics.median(usual[row.name])
        for row in rank.kernels
        if row.name in usual and statistics.median(usual[row.name]) > 0
    ]
    return statistics.median(ratios) if ratios else 1.0


def _advice(case: TraceCase, most: str, rank: int) -> str:
    """The remedy for the largest cause."""
    if most.startswith("kernels") and case.on_device:
        return (
            f"check clocks, power and heat of rank {rank}'s device; replace its node if they stay"
        )
    if most == "garbage collection":
        return "collect garbage at the same step on all ranks"
    if most == "the loader":
        return f"check rank {rank}'s data loader: its shard, its disk, its CPUs"
    return f"check rank {rank}'s host: other processes, CPU pinning, memory"


def imbalance(case: TraceCase) -> Outcome:
    if (missing := missing_ranks(case, "imbalance")) is not None:
        return missing
    wait = case.ledger.booked("imbalance")
    if case.together is not None and case.together.uneven is not None:
        return uneven_work(case, case.together, case.together.uneven)
    if wait < PRACTICAL * case.ledger.gpu_seconds:
        return []
    ratios = _most_over_mean(case)
    return report(
        "ranks get unequal work and wait for the one with the most",
        [("imbalance", wait)],
        [
            seconds_evidence(
                "waits explained by unequal FLOPs", case.where("account imbalance"), wait, 0.0
            ),
            Evidence(
                what="FLOPs of the heaviest rank over the mean",
                where=case.where("shapes"),
                value=statistics.fmean(ratios) if ratios else None,
                unit="",
                expected=1.0,
            ),
        ],
        Remedy(
            change=EVEN_WORK,
            command=command("packing", case.framework),
            gain_gpu_seconds=wait,
            gain_low=0.7 * wait,
            gain_high=wait,
        ),
    )


def _most_over_mean(case: TraceCase) -> list[float]:
    """FLOPs of the heaviest rank over the mean, step by step."""
    ratios = []
    for step in range(case.steps):
        values = [r.flops_by_step[step] for r in case.ranks if len(r.flops_by_step) > step]
        if values and min(values) > 0:
            ratios.append(max(values) / statistics.fmean(values))
    return ratios
