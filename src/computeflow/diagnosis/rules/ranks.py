"""Rules on ranks that differ, and on what passes between them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from computeflow.diagnosis.case import (
    DEVIATIONS,
    PRACTICAL,
    Case,
    Missing,
    Outcome,
    found,
    milliseconds,
)
from computeflow.diagnosis.remedies import command
from computeflow.ledger import Evidence, Finding, Remedy
from computeflow.telemetry.traces.measured import RankMeasured

FEW = 4
FEW_SHARE = 0.06
"""Of the window, that ranks must wait for one of fewer than `FEW`: among so few there are no usual ones
to hold it against; two equal ranks on one host waited up to 4.5 % for each other (gloo_traces)."""
STEPS = 4
"""From which on steps say how much they differ."""
FAR = 6.0
"""Robust deviations of the ranks' own time, beyond which one is not one of them."""
SLOWER = 1.3
"""Times the usual transfer of its like, that makes a link slow."""
MOST_TRANSFERS = 200
"""Of one message in one group: enough for a median, and memory stays bounded."""
LEAST_SECONDS = 50e-6
"""Shorter transfers are latency."""
_OWN = ("compute", "compute.recompute", "optimizer", "copy", "host", "input", "checkpoint",
        "evaluation", "unexplained")  # fmt: skip
_NO_OTHERS = "traces of other ranks that share collectives"


def straggler_rank(case: Case) -> Outcome:
    """One finding for all ranks that are slow: while one of them is, mending another gains little."""
    if "straggler" in case.ledger.unavailable:
        return Missing(case.ledger.unavailable["straggler"] or _NO_OTHERS)
    caused: dict[int, float] = {}
    for entry in case.ledger.entries:
        if entry.account == "straggler" and entry.cause is not None:
            caused[entry.cause.rank] = caused.get(entry.cause.rank, 0.0) + entry.gpu_seconds
    slow = _slow_ranks(case, caused)
    wait = sum(caused.get(rank.rank, 0.0) for rank in slow)
    few = len(case.ranks) < FEW
    if not slow or wait < (FEW_SHARE if few else PRACTICAL) * case.ledger.gpu_seconds:
        return []
    if few and not _later_each_step(slow[0], [rank for rank in case.ranks if rank is not slow[0]]):
        return []
    return _straggler(case, slow, wait)


def _slow_ranks(case: Case, caused: dict[int, float]) -> list[RankMeasured]:
    """Ranks whose own time is not that of the faster half; of few ranks, the one all wait for."""
    if len(case.ranks) < FEW:
        most = max(caused, key=lambda rank: caused[rank], default=-1)
        if most < 0 or caused[most] <= 0.7 * sum(caused.values()):
            return []
        return [rank for rank in case.ranks if rank.rank == most]
    faster = sorted(_own(rank) for rank in case.ranks)[: (len(case.ranks) + 1) // 2]
    middle = statistics.median(faster)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in faster)
    far = middle + max(FAR * spread, PRACTICAL * middle)
    return [rank for rank in case.ranks if _own(rank) > far]


def _later_each_step(rank: RankMeasured, others: Sequence[RankMeasured]) -> bool:
    """Whether a rank takes longer than the others by more than that differs from step to step."""
    mine = _own_by_step(rank)
    usual = [statistics.median(values) for values in zip(*map(_own_by_step, others), strict=False)]
    over = [own - other for own, other in zip(mine, usual, strict=False)]
    if len(over) < STEPS:  # too few to tell
        return True
    middle = statistics.median(over)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in over)
    return bool(middle > DEVIATIONS * spread / len(over) ** 0.5)


def _own_by_step(rank: RankMeasured) -> list[float]:
    parts = [rank.by_step[name] for name in _OWN if name in rank.by_step]
    return [sum(values) for values in zip(*parts, strict=True)]


def _own(rank: RankMeasured) -> float:
    """Seconds that are not spent in communication."""
    return sum(rank.accounts.get(name, 0.0) for name in _OWN)


def _straggler(case: Case, slow: list[RankMeasured], wait: float) -> list[Finding]:
    names = {rank.rank for rank in slow}
    others = [rank for rank in case.ranks if rank.rank not in names]
    more: dict[str, float] = {}
    parts: dict[str, float] = {}
    for rank in slow:
        excess = _excess(case, rank, others)
        for name, seconds in excess.items():
            more[name] = more.get(name, 0.0) + seconds
        for name, seconds in _explained(rank, others, excess).items():
            parts[name] = parts.get(name, 0.0) + seconds
    waiting = sum(
        any(
            e.account == "straggler" and e.cause and e.cause.rank in names
            for e in one.ledger.entries
        )
        for one in case.audit.job.ranks
    )
    total = sum(more.values()) or 1.0
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    reasons = ", ".join(f"{name} {100 * seconds / total:.0f} %" for name, seconds in ordered[:3])
    who = (
        f"rank {slow[0].rank}" if len(slow) == 1 else f"ranks {', '.join(map(str, sorted(names)))}"
    )
    worst = max(slow, key=_own)
    return found(
        "straggler-rank",
        f"{waiting} rank{'s wait' if waiting > 1 else ' waits'} for {who}"
        + (f": {reasons}" if reasons else ""),
        [("straggler", wait), *more.items()],
        [
            milliseconds(f"waits for {who}", case.where("account straggler"), wait, 0.0),
            *(milliseconds(f"{who} more than the others: {name}", worst.source, seconds)
              for name, seconds in ordered),
            *(one for rank in slow for one in _together(case, rank)),
        ],
        Remedy(change=_advice(case, parts, worst.rank), gain_gpu_seconds=wait + sum(more.values()),
               gain_low=0.0 if len(slow) > 1 else wait, gain_high=wait + sum(more.values()),
               risk="only when all of them are mended" if len(slow) > 1 else ""),
        ranks=sorted(names),
    )  # fmt: skip


def _excess(case: Case, rank: RankMeasured, others: Sequence[RankMeasured]) -> dict[str, float]:
    """By account, what this rank spends beyond the median of the others."""
    found = {}
    for name in _OWN:
        usual = statistics.median(other.accounts.get(name, 0.0) for other in others)
        over = rank.accounts.get(name, 0.0) - usual
        if over > 0.01 * _own(rank):
            counted = name == "compute" and case.ledger.booked("compute.kernel") > 0
            found["compute.kernel" if counted else name] = over
    return found


def _explained(
    rank: RankMeasured, others: Sequence[RankMeasured], more: dict[str, float]
) -> dict[str, float]:
    """The excess by what is behind it: slower kernels, garbage, the loader, the host."""
    parts: dict[str, float] = {}
    for name, seconds in more.items():
        if name == "host":
            named = _by_root(rank, others, seconds)
        elif name == "input":
            named = {"the loader": seconds}
        elif name.startswith("compute"):
            slower = kernel_ratio(rank, others)
            what = f"kernels {100 * (slower - 1):.0f} % slower" if slower > 1.02 else "more kernels"
            named = {what: seconds}
        else:
            named = {name: seconds}
        for what, part in named.items():
            parts[what] = parts.get(what, 0.0) + part
    return parts


def _by_root(
    rank: RankMeasured, others: Sequence[RankMeasured], seconds: float
) -> dict[str, float]:
    """Of what the host is late, no more in all than it is late."""
    names = {"gc": "garbage collection", "sync": "waits for the device", "input": "the loader",
             "launch": "late launches", "optimizer": "late launches"}  # fmt: skip
    found: dict[str, float] = {}
    for root, own in rank.signals.setbacks.items():
        usual = statistics.median(other.signals.setbacks.get(root, 0.0) for other in others)
        if own - usual > 0.05 * seconds:
            name = names.get(root, root)
            found[name] = found.get(name, 0.0) + own - usual
    most = sum(found.values())
    shrink = min(1.0, seconds / most) if most else 1.0
    return {name: shrink * part for name, part in found.items()} or {"host": seconds}


def kernel_ratio(rank: RankMeasured, others: Sequence[RankMeasured]) -> float:
    """Median over kernels that both have, of the rank's mean duration over the others' median."""
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


def _together(case: Case, rank: RankMeasured) -> list[Evidence]:
    """Happenings of other sources on that rank, ten minutes around the window."""
    start, end = rank.window_start / 1e9, rank.window_end / 1e9
    found = []
    for each in case.observed:
        for one in each.happenings:
            near = one.seconds is not None and start - 600 <= one.seconds <= end + 600
            if one.fault and near and one.rank == rank.rank:
                found.append(Evidence(what=one.what, where=f"{each.kind} {one.node}".strip()))
    return found[:5]


def _advice(case: Case, parts: dict[str, float], rank: int) -> str:
    most = max(parts, key=lambda name: parts[name], default="")
    if most.startswith("kernels") and case.on_device:
        return (
            f"look at clocks, power and heat of rank {rank}'s device; replace its node if they stay"
        )
    if most == "garbage collection":
        return "collect garbage at the same step on all ranks"
    if most == "the loader":
        return f"look at rank {rank}'s loader: its shard, its disk, its processors"
    return f"look at rank {rank}'s host: other processes, pinning to processors, its memory"


def imbalance(case: Case) -> Outcome:
    if "imbalance" in case.ledger.unavailable:
        return Missing(case.ledger.unavailable["imbalance"] or _NO_OTHERS)
    wait = case.ledger.booked("imbalance")
    if wait < PRACTICAL * case.ledger.gpu_seconds:
        return []
    ratios = []
    for place in range(case.steps):
        values = [r.flops_by_step[place] for r in case.ranks if len(r.flops_by_step) > place]
        if values and min(values) > 0:
            ratios.append(max(values) / statistics.fmean(values))
    return found(
        "imbalance",
        "ranks get unequal work and wait for the one that has most",
        [("imbalance", wait)],
        [
            milliseconds("waits that unequal FLOPs explain", case.where("account imbalance"), wait,
                         0.0),
            Evidence(what="FLOPs of the heaviest rank over the mean", where=case.where("shapes"),
                     value=statistics.fmean(ratios) if ratios else None, unit="", expected=1.0),
        ],
        Remedy(change="give every rank the same number of tokens, or the same cost, in each step",
               command=command("packing", case.framework), gain_gpu_seconds=wait,
               gain_low=0.7 * wait, gain_high=wait),
    )  # fmt: skip


def exposed_comm(case: Case) -> Outcome:
    """Communication far beyond what the predictor leaves exposed for the same layout."""
    measured = case.ledger.booked("comm")
    if not any(len(rank.collectives.start) for rank in case.ranks):
        return []
    if "straggler" in case.ledger.unavailable:
        return Missing(case.ledger.unavailable["straggler"] or _NO_OTHERS)
    if case.replay is None or not case.on_device:
        return Missing(case.why_not or "a device: the host computes")
    if measured < 2 * PRACTICAL * case.ledger.gpu_seconds:
        return []
    predicted = case.replay.predict()
    scale = case.steps * len(case.ranks) / predicted.ledger.gpus
    expected = predicted.ledger.booked("comm") * scale
    gain = measured - expected
    if measured < 2 * expected or gain < 2 * PRACTICAL * case.ledger.gpu_seconds:
        return []
    largest = max(case.ledger.accounts, key=lambda n: case.ledger.accounts[n]
                  if n.startswith("comm") else -1.0)  # fmt: skip
    return found(
        "exposed-comm",
        "communication is not hidden behind the backward pass",
        [(largest, gain)],
        [milliseconds("exposed transfers", case.where("account comm"), measured, expected)],
        Remedy(
            change="overlap: smaller buckets, prefetch of the next shard, a stream of its own",
            gain_gpu_seconds=gain,
            gain_low=0.5 * gain,
            gain_high=gain,
        ),
    )


@dataclass(frozen=True, slots=True)
class _Transfers:
    group: str
    account: str
    size: int
    elements: int
    seconds: float
    """Median of the shortest of all ranks: of the one that came last, which does not wait."""
    count: int


def slow_link(case: Case) -> Outcome:
    """One group is slower than its like: same size, same messages."""
    table = _transfers(case.ranks) if len(case.ranks) > 1 else []
    if not table:
        return Missing("traces of several groups whose collectives say their messages")
    findings: list[Finding] = []
    cohorts: dict[tuple[str, int, int], list[_Transfers]] = {}
    for row in table:
        cohorts.setdefault((row.account, row.size, row.elements), []).append(row)
    for (account, size, elements), rows in cohorts.items():
        if len(rows) < 3:
            continue
        usual = statistics.median(row.seconds for row in rows)
        spread = 1.4826 * statistics.median(abs(row.seconds - usual) for row in rows)
        for row in rows:
            over = row.seconds - usual
            lost = over * row.count * size
            if row.seconds > SLOWER * usual and over > FAR * spread:
                if lost < PRACTICAL * case.ledger.gpu_seconds:
                    continue
                findings += found(
                    "slow-link",
                    f"transfers of {row.group[:60]} take {row.seconds / usual:.1f} times as long",
                    [(account, lost)],
                    [milliseconds(f"a transfer of {elements:,} elements", row.group[:80],
                                  row.seconds, usual)],
                    Remedy(change="test the links of these ranks' nodes: cables, NICs, switch ports",
                           command="computeflow probe", gain_gpu_seconds=lost, gain_low=0.0,
                           gain_high=lost),
                )  # fmt: skip
    return findings


def _transfers(ranks: Sequence[RankMeasured]) -> list[_Transfers]:
    lengths: dict[tuple[str, int, int], list[float]] = {}
    facts: dict[str, tuple[str, int]] = {}
    counts: dict[tuple[str, int], int] = {}
    for rank in ranks:
        some = rank.collectives
        counted: dict[tuple[str, int], int] = {}
        for row in np.flatnonzero(some.elements > 0):
            group, elements = rank.groups[some.group[row]], int(some.elements[row])
            place = counted.get((group, elements), 0)
            counted[group, elements] = place + 1
            if place >= MOST_TRANSFERS:
                continue
            seconds = float(some.end[row] - some.start[row]) / 1e9
            lengths.setdefault((group, elements, place), []).append(seconds)
            account = rank.account_names[some.account[row]]
            facts[group] = (account, rank.group_sizes[some.group[row]])
        counts |= {key: max(n, counts.get(key, 0)) for key, n in counted.items()}
    shortest: dict[tuple[str, int], list[float]] = {}
    for (group, elements, _), values in lengths.items():
        if len(values) < facts[group][1]:
            continue  # a rank that is not traced may be the late one
        shortest.setdefault((group, elements), []).append(min(values))
    return [
        _Transfers(
            group, *facts[group], elements, statistics.median(values), counts[group, elements]
        )
        for (group, elements), values in shortest.items()
        if statistics.median(values) >= LEAST_SECONDS
    ]
