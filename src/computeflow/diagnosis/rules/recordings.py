"""Rules on run folders: what the recorder saw of every step of every rank.

A cause costs its own time and what the other ranks waited for it meanwhile. It is a finding where the
low end of its gain is above 2 % of the time in which the run trained. Start-up, restarts and what is
done again are no part of that time.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Sequence

from computeflow.diagnosis.remedies import command
from computeflow.diagnosis.rule import Missing, Outcome, report, seconds_evidence
from computeflow.diagnosis.rules.host import DATA_REMEDIES
from computeflow.diagnosis.rules.ranks_together import ADVICE, EVEN_WORK
from computeflow.diagnosis.slow_ranks import LEAST, LEAST_OF_FEW
from computeflow.diagnosis.trace_case import DEVIATIONS
from computeflow.ledger import Evidence, Ledger, Remedy
from computeflow.telemetry.run_folders.attempt_time import UNEQUAL
from computeflow.telemetry.run_folders.run_facts import (
    HostPlace,
    Pauses,
    RecordedRank,
    RecordedRun,
)
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import format_count, format_seconds

_SHORT_LOADING = 0.003
"""Seconds of loading in a step up to which it is what an ordinary loader takes to index and collate:
64 small samples take 1 ms. Up to there it must cost more."""
_LEAST_SHORT = 0.05
_MANY = 3
"""Ranks beside a slow one that show what is usual."""
_MOSTLY = 0.7
"""Share of the waits that must be for slow ranks: equal ranks are late by turns."""
_OWN = 2.0
"""Times the median of the others from which on a cause is a rank's own."""
_RETRIES = 0.01
"""Allocator retries in a step from which on memory is too small; a few while it warms up are none."""
_MIN_RETRIES = 3
_COMPUTING = ("forward", "backward", "optimizer")
_SHOWN = 5
_IN_WORDS = {"forward": "forward pass", "backward": "backward pass", "optimizer": "optimizer"}
_FRAMEWORKS = {
    "transformers": "trainer",
    "torchtitan": "torchtitan",
    "megatron": "megatron",
    "deepspeed": "deepspeed",
}
"""Frameworks of the recorder's list that have remedies of their own."""


def framework_in(run: RecordedRun) -> str:
    return next((_FRAMEWORKS[name] for name in run.framework if name in _FRAMEWORKS), "torch")


def training_seconds(ledger: Ledger) -> float:
    """GPU-seconds in which the run trained."""
    beside = ("startup", "restart", "lost", "idle")
    return ledger.gpu_seconds - sum(ledger.booked(name) for name in beside)


def _waits(run: RecordedRun, *parts: str) -> float:
    """Seconds that ranks waited for others that did this meanwhile."""
    return sum(rank.waited_for.get(part, 0.0) for rank in run.per_rank for part in parts)


def _to_blame(run: RecordedRun, part: str) -> list[RecordedRank]:
    """Ranks that do this longer than the others and are waited for; none where all do it alike."""
    if len(run.per_rank) < 2:
        return []
    share = _waits(run, part) / len(run.per_rank)
    usual = OthersMedian([rank.parts.get(part, 0.0) for rank in run.per_rank])
    return [
        rank
        for rank in run.per_rank
        if rank.waited_for.get(part, 0.0) > share
        and rank.parts.get(part, 0.0) > _OWN * usual.without(rank.parts.get(part, 0.0))
    ]


class OthersMedian:
    """The median of all values but one, for each of them, from one sort."""

    def __init__(self, values: Sequence[float]) -> None:
        self._ordered = sorted(values)

    def without(self, value: float) -> float:
        """The median without one of these values."""
        ordered, place = self._ordered, bisect_left(self._ordered, value)
        left = len(ordered) - 1
        low, high = (ordered[index + (index >= place)] for index in ((left - 1) // 2, left // 2))
        return (low + high) / 2


def _who(ranks: Sequence[RecordedRank]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(str(rank.rank) for rank in ranks)}"


def _per_step(run: RecordedRun, gpu_seconds: float) -> str:
    steps = sum(rank.booked_steps for rank in run.per_rank)
    return format_seconds(gpu_seconds / max(steps, 1))


def _over(run: RecordedRun, account: str) -> str:
    """Where time of all ranks is from: an account, over the steps that it is booked of."""
    steps = max((rank.booked_steps for rank in run.per_rank), default=0)
    ranks = f" of {format_count(len(run.per_rank), 'rank')}" if len(run.per_rank) > 1 else ""
    return f"account {account}, {format_count(steps, 'step')}{ranks}"


def _others_waiting(seconds: float) -> list[Evidence]:
    """What it cost the other ranks; nothing to say where nobody waited, as in a run of one."""
    what = "others waiting for them meanwhile"
    return [seconds_evidence(what, "account straggler", seconds, 0.0)] if seconds else []


def input_stall(observed: SourceReport) -> Outcome:
    run, ledger = observed.facts, observed.ledger
    if ledger is None:
        return []
    own, waits = ledger.booked("input"), _waits(run, "input")
    slowest = max((rank.parts.get("input", 0.0) for rank in run.per_rank), default=0.0)
    least = LEAST if slowest >= _SHORT_LOADING else _LEAST_SHORT
    if 0.75 * (own + waits) < least * training_seconds(ledger):
        return []
    ranks = _to_blame(run, "input")
    lost = _per_step(run, own + waits)
    one = len(run.per_rank) == 1
    title = (
        f"each step waits {lost} for data" if one else f"each rank waits {lost} per step for data"
    )
    change = DATA_REMEDIES["read and decode"]
    if ranks:
        title = (
            f"{_who(ranks)} waits for data and the others wait for it, {lost} per step on each rank"
        )
        change = f"{ADVICE['input'].format(who=_who(ranks))}; {change}"
    return report(
        title,
        [("input", own), ("straggler", waits)],
        [
            seconds_evidence("ranks waiting for a batch", _over(run, "input"), own, 0.0),
            *_others_waiting(waits),
        ],
        _remedy(change, command("workers", framework_in(run)), own + waits),
        ranks=[rank.rank for rank in ranks],
    )


def _remedy(change: str, setting: str, gain: float, low: float = 0.75, risk: str = "") -> Remedy:
    return Remedy(
        change=change,
        command=setting,
        gain_gpu_seconds=gain,
        gain_low=low * gain,
        gain_high=gain,
        risk=risk,
    )


def _paused(
    observed: SourceReport, pauses: Pauses, part: str, account: str, low: float
) -> tuple[float, float, list[RecordedRank]] | None:
    """Own seconds, waits and ranks of pauses that cost enough; None of others."""
    run, ledger = observed.facts, observed.ledger
    waits = _waits(run, part)
    if ledger is None or low * (pauses.seconds + waits) < LEAST * training_seconds(ledger):
        return None
    return min(pauses.seconds, ledger.booked(account)), waits, _to_blame(run, part)


def checkpoint_stall(observed: SourceReport) -> Outcome:
    run: RecordedRun = observed.facts
    found = _paused(observed, run.checkpoints, "checkpoint", "checkpoint", 0.5)
    if found is None:
        return []
    own, waits, ranks = found
    change = "write checkpoints in the background, from a copy in host memory"
    who = f" on {_who(ranks)}, and the others wait" if ranks else ""
    return report(
        f"training stops while a checkpoint is written{who}: in "
        f"{format_count(run.checkpoints.count, 'step')}, up to "
        f"{format_seconds(run.checkpoints.longest_seconds)}",
        [("checkpoint", own), ("straggler", waits)],
        [
            seconds_evidence("ranks saving", "account checkpoint", own, 0.0),
            *_others_waiting(waits),
        ],
        _remedy(
            f"{change}; {ADVICE['checkpoint']}" if ranks else change,
            command("checkpoint", framework_in(run)),
            own + waits,
            0.5,
        ),
        ranks=[rank.rank for rank in ranks],
        steady=_often(run, run.checkpoints),
    )


def _often(run: RecordedRun, pauses: Pauses) -> bool:
    """Whether it comes again and again: a run folder is the whole run, so its share is the run's."""
    return pauses.count > len(pauses.by_rank)


def evaluation(observed: SourceReport) -> Outcome:
    run: RecordedRun = observed.facts
    found = _paused(observed, run.evaluations, "evaluation", "evaluation", 0.5)
    if found is None:
        return []
    own, waits, ranks = found
    who = f" on {_who(ranks)}, and the others wait" if ranks else ""
    return report(
        f"training stops for an evaluation{who}: in "
        f"{format_count(run.evaluations.count, 'step')}, up to "
        f"{format_seconds(run.evaluations.longest_seconds)}",
        [("evaluation", own), ("straggler", waits)],
        [seconds_evidence("ranks evaluating", "account evaluation", own, 0.0)],
        _remedy(
            ADVICE["evaluation"] if ranks else "evaluate less often, on fewer batches or elsewhere",
            "",
            own + waits,
            0.5,
        ),
        ranks=[rank.rank for rank in ranks],
        steady=_often(run, run.evaluations),
    )


def gc_pause(observed: SourceReport) -> Outcome:
    run: RecordedRun = observed.facts
    found = _paused(observed, run.collections, "gc", "host", 0.75)
    if found is None:
        return []
    own, waits, ranks = found
    who = f" on {_who(ranks)}, and the others wait" if ranks else ""
    return report(
        f"Python collects garbage{who} in {format_count(run.collections.count, 'step')}, up to "
        f"{format_seconds(run.collections.longest_seconds)}",
        [("host", own), ("straggler", waits)],
        [
            seconds_evidence("garbage collections of 1 ms or more", "account host", own, 0.0),
            *_others_waiting(waits),
        ],
        _remedy(
            "collect rarely, at a fixed step on all ranks, and create fewer reference cycles",
            command("gc", framework_in(run)),
            own + waits,
            risk="memory held by cycles is freed only at the next collection",
        ),
        ranks=[rank.rank for rank in ranks],
    )


def host_stall(observed: SourceReport) -> Outcome:
    """Host time outside of known phases, in pieces of 3 ms or more."""
    run, ledger = observed.facts, observed.ledger
    if ledger is None:
        return []
    lost = {place.where: _beyond_usual(run, place) for place in run.places}
    own = min(sum(lost.values()), ledger.booked("host"))
    ranks = _to_blame(run, "host")
    waits = sum(rank.waited_for.get("host", 0.0) for rank in ranks)
    if 0.75 * (own + waits) < LEAST * training_seconds(ledger) or not own:
        return []
    where = max(lost, key=lambda name: lost[name])
    place = next(place for place in run.places if place.where == where)
    who = f"the host of {_who(ranks)}" if ranks else "the host"
    outside = ", outside any recorded phase" if where.startswith("between ") else ""
    return report(
        f"{who} stalls {where}{outside}: "
        f"{format_count(place.count, 'time')}, up to {format_seconds(place.longest_seconds)}",
        [("host", own), ("straggler", waits)],
        [
            *(
                seconds_evidence(f"host time {name}", "account host", seconds)
                for name, seconds in sorted(lost.items(), key=lambda item: -item[1])[:_SHOWN]
                if seconds
            ),
            *_others_waiting(waits),
        ],
        _remedy(
            "find out what it is, and move it out of the step or to another thread: name parts of "
            "the loop",
            'with computeflow.recorder.phase("..."): ...',
            own + waits,
        ),
        ranks=[rank.rank for rank in ranks],
    )


def _beyond_usual(run: RecordedRun, place: HostPlace) -> float:
    """GPU-seconds at a place beyond what a rank that computes on its host needs there: a loss takes no
    longer than the forward pass, clipping no longer than the optimizer.
    """
    usual = {"fb": "forward", "bo": "optimizer"}.get(place.before + place.after)
    if run.device != "cpu" or usual is None:
        return place.long_seconds
    return max(place.long_seconds - place.count * run.parts.get(usual, 0.0), 0.0)


def straggler_rank(observed: SourceReport) -> Outcome:
    """Ranks that compute longer than the others in most steps, at equal work."""
    run, ledger = observed.facts, observed.ledger
    if ledger is None or run.world < 2:
        return []
    if run.waits_missing:
        return Missing(run.waits_missing)
    heavy = {rank.rank for rank in _with_more_work(run)}
    slow = [rank for rank in run.per_rank if rank.rank not in heavy and _is_slow(run, rank)]
    waited = sum(_computing_waits(rank) for rank in slow)
    every = sum(_computing_waits(rank) for rank in run.per_rank)
    if not slow or 2 * len(slow) > len(run.per_rank) or waited < _MOSTLY * every:
        return []
    most = max(slow, key=_computing_excess)
    own = _own_computing(slow)
    waits = min(waited, _most_waits(run, slow))
    node = _slow_node(run, slow)
    who = f"node {node} ({_who(slow)})" if node else _who(slow)
    low = max(1 - DEVIATIONS * _error(most) / max(_computing_excess(most), 1e-9), 0.0)
    return report(
        _straggler_title(run, slow, who, waits),
        [("straggler", waits), *own.items()],
        [
            seconds_evidence(
                f"waits for {who} because of its longer computing", "account straggler", waits, 0.0
            ),
            *(
                seconds_evidence(f"{_who(slow)} beyond the others", f"account {name}", seconds, 0.0)
                for name, seconds in own.items()
            ),
            *_node_evidence(run, node),
            *(
                seconds_evidence(
                    f"{_who([rank])} computing in a step", rank.host, *_computing_of(rank)
                )
                for rank in slow[:_SHOWN]
            ),
        ],
        _remedy(_advice(run, slow, node), "", waits + sum(own.values()), low),
        ranks=[rank.rank for rank in slow],
    )


def _straggler_title(run: RecordedRun, slow: Sequence[RecordedRank], who: str, waits: float) -> str:
    """`waits`: those that are claimed, of all ranks."""
    most, waiting = max(slow, key=_computing_excess), len(run.per_rank) - len(slow)
    assert most.excess is not None
    part = next(name for name in most.excess.by_part if name in _COMPUTING)
    own, usual = _computing_of(most)
    each = min(waits / (waiting * most.excess.steps), own - usual)
    return (
        f"{format_count(waiting, 'rank')} {'waits' if waiting == 1 else 'wait'} for {who}, "
        f"{format_seconds(each)} a step: {'it' if len(slow) == 1 else _who([most])} computes for "
        f"{format_seconds(own)}, others for {format_seconds(usual)}; its {_IN_WORDS[part]} differs most"
    )


def _computing_of(rank: RecordedRank) -> tuple[float, float]:
    """Mean seconds of a step that a rank computes, and what is usual: that without its excess."""
    own = sum(rank.parts.get(part, 0.0) for part in _COMPUTING)
    return own, max(own - _computing_excess(rank), 0.0)


def _own_computing(slow: Sequence[RecordedRank]) -> dict[str, float]:
    """GPU-seconds that slow ranks compute beyond the others, by account."""
    booked: dict[str, float] = {}
    for rank in slow:
        assert rank.excess is not None
        more = {part: max(rank.excess.by_part.get(part, 0.0), 0.0) for part in _COMPUTING}
        # parts that are shorter are taken off the longer ones
        whole = _computing_excess(rank) * rank.excess.steps / max(sum(more.values()), 1e-12)
        for part, seconds in more.items():
            account = "optimizer" if part == "optimizer" else "compute"
            booked[account] = booked.get(account, 0.0) + whole * seconds
    return {name: seconds for name, seconds in booked.items() if seconds > 0}


def _most_waits(run: RecordedRun, slow: Sequence[RecordedRank]) -> float:
    """Most seconds of waiting that the slow ranks' longer computing can cause: without it no rank's
    step is shorter by more than what the slowest of them computes longer.
    """
    longer = [_computing_excess(rank) * rank.excess.steps for rank in slow if rank.excess]
    return max(len(run.per_rank) * max(longer) - sum(longer), 0.0)


def _slow_node(run: RecordedRun, slow: Sequence[RecordedRank]) -> str:
    """The host of several slow ranks, where they are all of one and its other ranks are slower than
    the median, too; "" else.
    """
    hosts = {rank.host for rank in slow}
    if len(slow) < 2 or len(hosts) > 1 or run.hosts < 2:
        return ""
    (host,) = hosts
    there = [rank for rank in run.per_rank if rank.host == host]
    late = [rank for rank in there if rank.excess is not None and rank.excess.seconds > 0]
    return host if len(late) == len(there) and 2 * len(slow) >= len(there) else ""


def _node_evidence(run: RecordedRun, node: str) -> list[Evidence]:
    """Own time of a step on the slow node, against the other nodes."""
    if not node:
        return []
    own: dict[bool, list[float]] = {True: [], False: []}
    for rank in run.per_rank:
        if rank.own_seconds is not None:
            own[rank.host == node].append(rank.own_seconds)
    here, elsewhere = (
        statistics.median(own[side]) if own[side] else None for side in (True, False)
    )
    return [seconds_evidence("own time of its ranks in a step", f"node {node}", here, elsewhere)]


def _computing_waits(rank: RecordedRank) -> float:
    return sum(rank.waited_for.get(part, 0.0) for part in _COMPUTING)


def _computing_excess(rank: RecordedRank) -> float:
    if rank.excess is None:
        return 0.0
    return max(sum(rank.excess.by_part.get(part, 0.0) for part in _COMPUTING), 0.0)


def _error(rank: RecordedRank) -> float:
    """Standard error of the median excess."""
    return 0.0 if rank.excess is None else rank.excess.spread_seconds / rank.excess.steps**0.5


def _is_slow(run: RecordedRun, rank: RecordedRank) -> bool:
    """Whether a rank computes longer than the others by more than chance, in most steps."""
    excess, step = rank.excess, run.step_seconds
    if excess is None or not step:
        return False
    least = LEAST if len(run.per_rank) > _MANY else LEAST_OF_FEW
    sure = min(excess.seconds, _computing_excess(rank)) - DEVIATIONS * _error(rank)
    return sure >= least * step


def _with_more_work(run: RecordedRun) -> list[RecordedRank]:
    known = [rank.tokens for rank in run.per_rank if rank.tokens]
    if len(known) < 2:
        return []
    usual = OthersMedian(known)
    return [
        rank
        for rank in run.per_rank
        if rank.tokens and rank.tokens > UNEQUAL * usual.without(rank.tokens)
    ]


def _advice(run: RecordedRun, slow: Sequence[RecordedRank], node: str) -> str:
    if node:
        return (
            f"check node {node}: clocks, power and heat of its devices, other processes, memory and "
            "links; replace it if it stays slow"
        )
    who = _who(slow)
    if run.device == "cpu":
        return f"check {who}'s host: other processes, CPU pinning, memory"
    return f"check clocks, power and heat of {who}'s device; replace its node if they stay"


def imbalance(observed: SourceReport) -> Outcome:
    run, ledger = observed.facts, observed.ledger
    if ledger is None or run.world < 2 or run.waits_missing:
        return []
    waits = ledger.booked("imbalance")
    if 0.75 * waits < LEAST * training_seconds(ledger):
        return []
    heavy = _with_more_work(run)
    who = f"{_who(heavy)} has more tokens than the others" if heavy else "ranks' tokens differ"
    return report(
        f"{who}: ranks wait {_per_step(run, waits)} a step for unequal work",
        [("imbalance", waits)],
        [
            seconds_evidence("waits that more tokens explain", _over(run, "imbalance"), waits, 0.0),
            *(
                Evidence(what=f"tokens of rank {r.rank} in a step", where=r.host, value=r.tokens)
                for r in run.per_rank[:_SHOWN]
            ),
        ],
        _remedy(EVEN_WORK, command("packing", framework_in(run)), waits),
        ranks=[rank.rank for rank in heavy],
    )


def memory_pressure(observed: SourceReport) -> Outcome:
    """Allocator retries, which the recorder counts and does not time."""
    run: RecordedRun = observed.facts
    tight = [
        rank
        for rank in run.per_rank
        if rank.memory.get("ooms", 0)
        or rank.memory.get("retries", 0) >= max(_MIN_RETRIES, _RETRIES * rank.steps)
    ]
    if not tight:
        return []
    retries = sum(rank.memory.get("retries", 0) for rank in tight)
    failed = sum(rank.memory.get("ooms", 0) for rank in tight)
    what = f"ran out {format_count(failed, 'time')}" if failed else "is too small"
    return report(
        f"device memory of {_who(tight)} {what}: its allocator freed and retried "
        f"{format_count(retries, 'time')}",
        [("host", 0.0)],
        [
            Evidence(
                what=f"retries on rank {rank.rank}",
                where=rank.host,
                value=float(rank.memory.get("retries", 0)),
                expected=0.0,
            )
            for rank in tight[:_SHOWN]
        ],
        Remedy(
            change="let the allocator grow its segments; use a smaller micro-batch if it still "
            "frees and retries",
            command=command("allocator", framework_in(run)),
        ),
        ranks=[rank.rank for rank in tight],
    )
