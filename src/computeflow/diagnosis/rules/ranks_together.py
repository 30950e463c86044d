"""Findings on ranks that were replayed together: who keeps the others waiting, and what it did."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from computeflow.diagnosis.remedies import command
from computeflow.diagnosis.rule import Draft, Missing, Outcome, report, seconds_evidence
from computeflow.diagnosis.slow_ranks import LEAST, RanksTogether, SlowRanks
from computeflow.diagnosis.trace_case import TraceCase
from computeflow.ledger import Evidence, Remedy
from computeflow.replay.profiler_cost import Range
from computeflow.telemetry.traces.rank_measurements import KernelRow, RankMeasurement

EVEN_WORK = "give every rank the same number of tokens, or the same cost, in each step"
_OTHERS = ("straggler", "imbalance", "bubble", "comm", "host", "unexplained", "compute")
"""Accounts that a claim falls back to where its own do not hold as much."""
NEAR_SECONDS = 600.0
"""Time around the window in which faults from other sources are added to a finding."""
_REPEATS = 0.1
"""Share of a gain by which the recorded steps differ from those of the run without its profiler: with
it the range holds 9 of 10 measured gains of the scripts that rules were made on (benchmarks/ranks)."""
_MORE_OFTEN = 1.2
"""Ratio of counts from which a rank runs more of an operator than the others."""
_SLOWER = 1.05
_DOING = {
    "checkpoint": "saves a checkpoint",
    "evaluation": "evaluates",
    "input": "waits for its loader",
    "optimizer": "takes longer in its optimizer",
    "copy": "copies",
    "compute.recompute": "computes activations again",
}
ADVICE = {
    "checkpoint": "save asynchronously (torch.distributed.checkpoint.async_save), or let every rank "
    "save its part",
    "evaluation": "let all ranks evaluate a part each, or evaluate less often or in another job",
    "input": "check {who}'s data loader: its shard, its disk, its CPUs",
}


def missing_ranks(case: TraceCase, account: str) -> Missing | None:
    """The missing signal of an account that needs traces of several ranks."""
    if account not in case.ledger.unavailable:
        return None
    reason = case.ledger.unavailable[account]
    return Missing(reason or "traces of other ranks that share collectives")


def kept_waiting(case: TraceCase, together: RanksTogether, slow: SlowRanks) -> list[Draft]:
    """The finding on slow ranks: what they did while the others waited, and what that costs."""
    ranks = [case.ranks[place] for place in slow.places]
    numbers = [rank.rank for rank in ranks]
    who = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, numbers))}"
    cause = next(iter(slow.excess), "")
    doing, evidence = _what(case, slow, ranks, cause)
    waits = "ranks wait" if slow.waiting > 1 else "rank waits"
    lost = 1e3 * slow.gain.middle * together.step_seconds
    return report(
        f"{slow.waiting} {waits} for {who}, {lost:.3g} ms a step: "
        f"{'each of them' if len(ranks) > 1 else 'it'} {doing}",
        _claims(case, slow.gain, slow.excess),
        [
            seconds_evidence(
                f"waits for {who}", case.where("account straggler"), slow.wait_seconds, 0.0
            ),
            *(
                seconds_evidence(
                    f"{who} spent more than the others in a step: {name}", ranks[0].source, seconds
                )
                for name, seconds in list(slow.excess.items())[:3]
                if seconds > 0.005 * together.step_seconds
            ),
            *evidence,
            *(seen for rank in ranks for seen in seen_elsewhere(case, rank)),
        ],
        _remedy(
            case,
            slow.gain,
            _advice(case, together, cause, who, doing),
            "gained only when all of them are repaired" if len(ranks) > 1 else "",
        ),
        ranks=numbers,
    )


def uneven_work(case: TraceCase, together: RanksTogether, gain: Range) -> list[Draft]:
    """The finding on ranks whose work differs: by turns, or from stage to stage."""
    lost = 1e3 * gain.middle * together.step_seconds
    numbers: list[int] = []
    risk = ""
    if together.slow is not None and together.slow.more_work <= 1:
        stages = " and ".join(str(case.ranks[place].rank) for place in together.slow.places)
        title = (
            f"the stages of ranks {stages} compute longer than the others, which wait for them: "
            f"{lost:.3g} ms a step"
        )
        change = f"move layers from the stages of ranks {stages} to the others"
        risk = "if these ranks have as many layers as the others, their hosts are slow instead"
    elif together.slow is not None:
        heaviest = max(together.slow.places, key=lambda place: _own(case.ranks[place]))
        numbers = [case.ranks[heaviest].rank]
        title = (
            f"the stage of rank {numbers[0]} has more work than the others "
            f"({together.slow.more_work:.2g} times the operators), which wait for it: "
            f"{lost:.3g} ms a step"
        )
        change = f"move layers from rank {numbers[0]}'s stage to the others"
    else:
        title = f"ranks have unequal work by turns and wait for each other: {lost:.3g} ms a step"
        change = EVEN_WORK
    waits = case.ledger.booked("straggler") + case.ledger.booked("imbalance")
    return report(
        title,
        _claims(case, gain, {}),
        [seconds_evidence("waits of ranks with less to do", case.where("waits"), waits, 0.0)],
        _remedy(case, gain, change, risk),
        ranks=numbers,
    )


def repeated_reduction(case: TraceCase) -> Outcome:
    """The finding on gradients that are reduced in every backward pass of a step."""
    if (missing := missing_ranks(case, "straggler")) is not None:
        return missing
    together = case.together
    if together is None:
        return Missing("ranks that can be replayed together")
    gain = together.reduced_once
    if gain is None or gain.middle < LEAST:
        return []
    early = sum(int(rank.collectives.early.sum()) for rank in case.ranks)
    reductions = early / len(case.ranks) / case.steps
    lost = 1e3 * gain.middle * together.step_seconds
    return report(
        "gradients are reduced in every backward pass of a step, the last one would do: "
        f"{lost:.3g} ms a step",
        _claims(case, gain, {}, ("comm", "straggler", "comm.dp")),
        [
            Evidence(
                what="reductions in a step that a later pass repeats",
                where=case.where("backward passes"),
                value=reductions,
                unit="",
                expected=0.0,
            )
        ],
        _remedy(
            case,
            gain,
            "reduce gradients in the last backward pass before the optimizer alone",
            setting=command("no-sync", case.framework),
        ),
    )


def _own(rank: RankMeasurement) -> float:
    return sum(seconds for name, seconds in rank.accounts.items() if not name.startswith("comm"))


def _claims(
    case: TraceCase,
    gain: Range,
    excess: dict[str, float],
    first: Sequence[str] = ("straggler", "imbalance"),
) -> list[tuple[str, float]]:
    """What the gain is drawn from: waits first, then what the slow ranks did beyond the others."""
    wanted = max(gain.middle, 0.0) * case.ledger.gpu_seconds
    claims: list[tuple[str, float]] = []
    for account in dict.fromkeys((*first, *excess, *_OTHERS)):
        part = min(case.ledger.booked(account), wanted)
        if part > 0 or not claims:
            claims.append((account, part))
            wanted -= part
    return claims


def _remedy(case: TraceCase, gain: Range, change: str, risk: str = "", setting: str = "") -> Remedy:
    scale = case.ledger.gpu_seconds
    return Remedy(
        change=change,
        command=setting,
        gain_gpu_seconds=gain.middle * scale,
        gain_low=max(gain.low - _REPEATS * gain.middle, 0.0) * scale,
        gain_high=min(gain.high + _REPEATS * gain.middle, 1.0) * scale,
        risk=risk,
    )


def seen_elsewhere(case: TraceCase, rank: RankMeasurement) -> list[Evidence]:
    """Faults of that rank in other sources, around the window."""
    start, end = rank.window_start / 1e9 - NEAR_SECONDS, rank.window_end / 1e9 + NEAR_SECONDS
    return [
        Evidence(what=event.what, where=f"{each.kind} {event.node}".strip())
        for each in case.observed
        for event in each.happenings
        if event.fault and event.rank == rank.rank
        if event.seconds is not None and start <= event.seconds <= end
    ][:5]


def _what(
    case: TraceCase, slow: SlowRanks, ranks: Sequence[RankMeasurement], cause: str
) -> tuple[str, list[Evidence]]:
    """What slow ranks did beyond the others, in words and as evidence."""
    others = [rank for place, rank in enumerate(case.ranks) if place not in slow.places]
    first = ranks[0]
    if cause == "host":
        return _idle(first, others)
    if cause.startswith("compute") and cause != "compute.recompute":
        return _operators(first, others)
    return _DOING.get(cause, f"spends more in {cause}" if cause else "comes last"), []


def _idle(rank: RankMeasurement, others: Sequence[RankMeasurement]) -> tuple[str, list[Evidence]]:
    """Where the host runs nothing that is recorded, longer than the others do."""
    if _over(rank.signals.collection_seconds, [r.signals.collection_seconds for r in others]):
        return "collects garbage", []
    mine = _by_place(rank)
    place = max(
        mine,
        key=lambda at: mine[at] - statistics.median(_by_place(r).get(at, 0.0) for r in others),
        default=("", "", ""),
    )
    inside, before, after = place
    doing = f"runs {inside!r}" if inside else "runs nothing that the profiler records"
    where = f" after {before}" if before and not inside else ""
    where += f" and before {after}" if after and where else ""
    evidence = []
    if place in mine:
        text = f"the longest of it{where or f' in {inside}'}"
        evidence.append(seconds_evidence(text, rank.source, mine[place]))
    if not inside:
        doing += "; with_stack=True names it"
    return doing, evidence


def _by_place(rank: RankMeasurement) -> dict[tuple[str, str, str], float]:
    places: dict[tuple[str, str, str], float] = {}
    for gap in rank.gaps:
        key = gap.inside, gap.before, gap.following
        places[key] = places.get(key, 0.0) + gap.seconds
    return places


def _over(own: float, others: Sequence[float]) -> bool:
    return own > 0.01 and own > 2 * statistics.median(others)


def _operators(
    rank: RankMeasurement, others: Sequence[RankMeasurement]
) -> tuple[str, list[Evidence]]:
    """Which operators a rank has more of, or how much longer the same ones take."""
    more: list[tuple[float, KernelRow, float]] = []
    slower: list[tuple[float, float]] = []
    for row in rank.kernels:
        if row.work != "compute":
            continue
        rows = [_row(other, row.name) for other in others]
        count = statistics.median(other.count if other else 0 for other in rows)
        usual = statistics.median(other.seconds if other else 0.0 for other in rows)
        if row.count > _MORE_OFTEN * count:
            more.append((row.seconds - usual, row, count))
        elif count and usual:
            slower.append((row.seconds, row.seconds / row.count / (usual / count)))
    more.sort(key=lambda part: -part[0])
    added = sum(seconds for seconds, _, _ in more)
    longer = sum(seconds * (1 - 1 / ratio) for seconds, ratio in slower if ratio > 1)
    if more and added > longer:
        named = ", ".join(
            f"{row.name[:40]} ({row.count} against {count:g})" for _, row, count in more[:2]
        )
        return f"runs operators that the others do not: {named}", [
            seconds_evidence(f"more of {row.name}", rank.source, seconds)
            for seconds, row, _ in more[:3]
        ]
    ratio = _weighted(slower)
    if ratio > _SLOWER:
        return f"takes {ratio:.2f} times as long for the same operators", []
    return "computes longer", []


def _row(rank: RankMeasurement, name: str) -> KernelRow | None:
    return next((row for row in rank.kernels if row.name == name), None)


def _weighted(slower: Sequence[tuple[float, float]]) -> float:
    """Mean ratio of times, weighted by time."""
    total = sum(seconds for seconds, _ in slower)
    return sum(seconds * ratio for seconds, ratio in slower) / total if total else 1.0


def _advice(case: TraceCase, together: RanksTogether, cause: str, who: str, doing: str) -> str:
    if cause in ADVICE:
        return ADVICE[cause].format(who=who)
    if doing.startswith("collects garbage"):
        return "collect garbage at the same step on all ranks (gc.disable, then gc.collect)"
    if cause == "host" or doing.startswith("runs operators"):
        does = "do" if who.startswith("ranks") else "does"
        return f"do on all ranks, less often, or beside the step what {who} alone {does} in it"
    if case.on_device:
        return f"check clocks, power and heat of {who}'s device; replace its node if they stay"
    stage = ", or give its stage fewer layers" if together.in_pipeline else ""
    return f"check {who}'s host: other processes, CPU pinning, memory{stage}"
