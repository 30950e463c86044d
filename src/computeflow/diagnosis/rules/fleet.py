"""Rules on the metrics of a fleet: allocated GPUs that are idle, and throttled clocks.

`idle-allocation`: somebody holds the GPU (a label says so, or its memory is in use) and nothing ran for
ten minutes in a row. `clock-throttle`: the mean SM clock while busy lies below the median of GPUs of
the same model by `_LOWER` and by `FAR` robust deviations (which up to half of the fleet cannot move),
and the device itself reports a reason. A GPU that only its power limit slows counts if it draws no more
than its peers: one that draws more works harder.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from computeflow.diagnosis.robust import median_and_spread
from computeflow.diagnosis.rule import Draft, Missing, Outcome, report, seconds_evidence
from computeflow.diagnosis.scheduler_commands import drain_command, end_command, scheduler_of
from computeflow.ledger import Evidence, Remedy
from computeflow.telemetry.metrics.exporter_fields import BY_POWER, NEEDED
from computeflow.telemetry.metrics.gpu_facts import IDLE_SECONDS
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import format_seconds, format_share, format_si

if TYPE_CHECKING:
    from computeflow.telemetry.metrics.gpu_facts import (
        ActivitySummary,
        Busy,
        GpuFigures,
        Idle,
        MetricsFacts,
    )

_LOWER = 0.05
"""Least share of the usual clock that a slow GPU must lie below it."""
FAR = 5.0
_COHORT = 4
_SAMPLES = 5
_MIN_SPREAD = 0.005
"""Least spread, as a share of the median: clocks change in steps of 15 MHz."""
_REASON = 0.1
"""Least share of busy time for a reason to count."""
_MORE_POWER = 1.05
_MAX_EVIDENCE = 16


def idle_allocation(observed: SourceReport) -> Outcome:
    facts: MetricsFacts = observed.facts
    activities = [gpu.activity for gpu in facts.gpus if gpu.activity is not None]
    if not activities:
        return Missing(NEEDED["utilisation"]) if facts.gpus else []
    if max(activity.span_seconds or 0.0 for activity in activities) < IDLE_SECONDS:
        return Missing(f"{IDLE_SECONDS / 60:.0f} minutes of samples")
    groups: dict[tuple[str, str], list[_IdleGpu]] = {}
    for idle_gpu in _idle_gpus(facts.gpus):
        groups.setdefault((idle_gpu.gpu.node, ", ".join(idle_gpu.idle.holders)), []).append(
            idle_gpu
        )
    drafts = [
        draft for key, idle in groups.items() for draft in _idle(*key, idle, _where(observed))
    ]
    return [*drafts, *_unknown_holders(activities)]


@dataclass(frozen=True, slots=True)
class _IdleGpu:
    gpu: GpuFigures
    signal: str
    idle: Idle


def _idle_gpus(gpus: Sequence[GpuFigures]) -> Iterator[_IdleGpu]:
    for gpu in gpus:
        if gpu.activity is not None and gpu.activity.idle is not None:
            yield _IdleGpu(gpu, gpu.activity.signal, gpu.activity.idle)


def _unknown_holders(activities: Sequence[ActivitySummary]) -> list[Missing]:
    silent = sum(
        activity.holder_unknown for activity in activities if activity.span_seconds is not None
    )
    needed = f"who holds {silent} inactive GPUs: pod or job labels, or {NEEDED['memory_used']}"
    return [Missing(needed)] if silent else []


def _where(observed: SourceReport) -> str:
    return ", ".join(observed.sources[:3])


def _idle(node: str, holders: str, group: Sequence[_IdleGpu], where: str) -> list[Draft]:
    """One finding for the GPUs of a node that one holder leaves idle."""
    seconds = sum(idle_gpu.idle.seconds for idle_gpu in group)
    who = group[0].gpu.label
    if len(group) > 1:
        who = f"{len(group)} GPUs" + (f" of {node}" if node else "")
    by = f", held by {holders}," if holders else ", with memory in use,"
    return report(
        f"{who}{by} ran nothing for {format_seconds(seconds / len(group))}",
        [("idle", seconds)],
        [
            seconds_evidence(_idle_text(idle_gpu), where, idle_gpu.idle.longest_seconds)
            for idle_gpu in group[:_MAX_EVIDENCE]
        ],
        Remedy(
            change="release the GPUs when their work ends, or give them work",
            command=end_command(holders),
            gain_gpu_seconds=seconds,
            risk="a process that only waits (a debugger, a notebook) ends with the allocation",
        ),
    )


def _idle_text(one: _IdleGpu) -> str:
    parts = [f"{one.gpu.label}: {one.signal.replace('_', ' ')} 0"]
    if one.idle.memory_most_bytes is not None:
        parts.append(f"{format_si(one.idle.memory_most_bytes, 'B')} of memory in use")
    if one.idle.power_watts is not None:
        parts.append(f"{one.idle.power_watts:.0f} W")
    return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class _Clocked:
    gpu: GpuFigures
    busy: Busy

    @property
    def reasons(self) -> Mapping[str, float]:
        return self.busy.reasons or {}


def clock_throttle(observed: SourceReport) -> Outcome:
    facts: MetricsFacts = observed.facts
    found = find_slow(facts.gpus)
    if isinstance(found, Missing):
        return found
    slow, unknown = found
    return [*(draft for one in slow for draft in _throttled(one, _where(observed))), *unknown]


def find_slow(gpus: Sequence[GpuFigures]) -> tuple[list[SlowGpu], list[Missing]] | Missing:
    """GPUs that run below their peers for a reason that they give; and missing reasons of others."""
    if lacking := _lacking(gpus):
        return Missing(", ".join(lacking))
    clocked = [one for gpu in gpus for one in _clocked(gpu)]
    cohorts = _cohorts(clocked)
    if gpus and not cohorts:
        return Missing(f"{_COHORT} busy GPUs of one model, with {_SAMPLES} timed samples each")
    slow = [one for peers in cohorts for one in _below(peers)]
    return [one for one in slow if _blamed(one)], _unknown_reasons(clocked, slow)


def _lacking(gpus: Sequence[GpuFigures]) -> list[str]:
    """Signals that no GPU has."""
    if not gpus:
        return []
    lacking = [] if any(gpu.activity for gpu in gpus) else [NEEDED["utilisation"]]
    return lacking + ([] if any(gpu.clock_sampled for gpu in gpus) else [NEEDED["clock"]])


@dataclass(frozen=True, slots=True)
class SlowGpu:
    clocked: _Clocked
    usual: float
    peers: Sequence[_Clocked]
    """Including the GPU itself."""

    @property
    def lower(self) -> float:
        """How far below the usual clock, as a share of it."""
        return 1 - self.clocked.busy.clock_hertz / self.usual

    @property
    def lost_seconds(self) -> float:
        return self.clocked.busy.seconds * self.lower

    @property
    def title(self) -> str:
        return (
            f"{self.clocked.gpu.label} runs {format_share(self.lower)} below the clock of "
            f"{len(self.peers) - 1} peers: {', '.join(_blamed(self))}"
        )


def _unknown_reasons(clocked: Sequence[_Clocked], slow: Sequence[SlowGpu]) -> list[Missing]:
    """The missing reasons of GPUs that report none; slow ones are named."""
    silent = sum(one.busy.reasons is None for one in clocked)
    if not silent:
        return []
    named = [
        f"{one.clocked.gpu.label} runs {format_share(one.lower)} below its peers"
        for one in slow
        if one.clocked.busy.reasons is None
    ]
    seen = f"; {'; '.join(named[:_MAX_EVIDENCE])}: cause unknown" if named else ""
    return [Missing(f"{NEEDED['reasons']}, on {silent} of {len(clocked)} GPUs{seen}")]


def _clocked(gpu: GpuFigures) -> Iterator[_Clocked]:
    activity = gpu.activity
    if activity is None or activity.busy is None or activity.span_seconds is None:
        return
    if activity.busy.samples >= _SAMPLES and activity.busy.seconds > 0:
        yield _Clocked(gpu, activity.busy)


def _cohorts(clocked: Sequence[_Clocked]) -> list[list[_Clocked]]:
    """GPUs of one model with the same workload; small workloads are pooled by model."""
    by_work: dict[tuple[str, ...], list[_Clocked]] = {}
    for one in clocked:
        works = sorted({stem(name) for name in one.gpu.workloads})
        by_work.setdefault((one.gpu.model, *works), []).append(one)
    whole = [group for group in by_work.values() if len(group) >= _COHORT]
    by_model: dict[str, list[_Clocked]] = {}
    for (model, *_), group in by_work.items():
        if len(group) < _COHORT:
            by_model.setdefault(model, []).extend(group)
    return whole + [group for group in by_model.values() if len(group) >= _COHORT]


def stem(workload: str) -> str:
    """The common part of the names of a job's workers: `train/llama-worker-3` and `-4`, or
    `llama-0-x7k2p`.
    """
    return re.sub(r"(-[0-9]+|-(?=[a-z]*[0-9])[a-z0-9]{5,10})+$", "", workload)


def _below(peers: Sequence[_Clocked]) -> list[SlowGpu]:
    usual, spread = median_and_spread([one.busy.clock_hertz for one in peers])
    least = max(_LOWER * usual, FAR * max(spread, _MIN_SPREAD * usual))
    return [SlowGpu(one, usual, peers) for one in peers if usual - one.busy.clock_hertz >= least]


def _blamed(slow: SlowGpu) -> dict[str, float]:
    """The reported reasons, largest first: those its peers show less, else all; empty: no finding."""
    shown = {name: share for name, share in slow.clocked.reasons.items() if share >= _REASON}
    own = {
        name: share
        for name, share in shown.items()
        if share >= _REASON + statistics.median(peer.reasons.get(name, 0.0) for peer in slow.peers)
    }
    chosen = own or shown
    if set(chosen) <= BY_POWER and not _draws_no_more(slow.clocked, slow.peers):
        return {}
    return dict(sorted(chosen.items(), key=lambda item: -item[1]))


def _draws_no_more(one: _Clocked, peers: Sequence[_Clocked]) -> bool:
    drawn = [peer.busy.power_watts for peer in peers if peer.busy.power_watts is not None]
    own = one.busy.power_watts
    return own is not None and bool(drawn) and own <= _MORE_POWER * statistics.median(drawn)


def _throttled(slow: SlowGpu, where: str) -> list[Draft]:
    return report(
        slow.title,
        [("compute.clock", slow.lost_seconds)],
        slow_evidence(slow, where),
        throttle_remedy(slow, slow.lost_seconds, scheduler_of(slow.clocked.gpu.workloads)),
    )


def slow_evidence(slow: SlowGpu, where: str) -> list[Evidence]:
    reasons, gpu, busy = _blamed(slow), slow.clocked.gpu, slow.clocked.busy
    listed = ", ".join(
        f"{name} ({format_share(share)} of its busy time)" for name, share in reasons.items()
    )
    evidence = [
        Evidence(
            what=f"mean SM clock while busy, against the median of {len(slow.peers)} GPUs of its model",
            where=where,
            value=busy.clock_hertz,
            unit="Hz",
            expected=slow.usual,
        ),
        Evidence(
            what=f"reasons that the device reports: {listed}",
            where=where,
            value=next(iter(reasons.values())),
            unit="share of busy time",
        ),
    ]
    if gpu.temperature_most is not None:
        evidence.append(
            Evidence(what="highest temperature", where=where, value=gpu.temperature_most, unit="°C")
        )
    return evidence


def throttle_remedy(slow: SlowGpu, gain: float, scheduler: str) -> Remedy:
    reasons, gpu = _blamed(slow), slow.clocked.gpu
    change = _change(set(reasons))
    drains = bool(gpu.node) and "drain" in change
    why = f"GPU {gpu.gpu or gpu.uuid}: {', '.join(reasons)}"
    return Remedy(
        change=change,
        command=drain_command(gpu.node, why, scheduler) if drains else "",
        gain_gpu_seconds=gain,
    )


def _change(reasons: set[str]) -> str:
    if any("thermal" in name or "hot" in name or name == "hardware slowdown" for name in reasons):
        return "check its cooling (fans, inlet, cold plate); drain the node until it is repaired"
    if "power brake" in reasons:
        return "check the node's power supplies and the rack's power limit"
    if reasons <= BY_POWER | {"board limit violation"}:
        return "compare its power limit with its peers' (nvidia-smi -q -d POWER) and raise it"
    if "clocks setting" in reasons:
        return "reset the clocks that were set on it (nvidia-smi --reset-gpu-clocks)"
    return "compare the device's settings with its peers' (nvidia-smi -q -d PERFORMANCE,CLOCK)"
