"""Two rules on metrics: `idle-allocation` and `clock-throttle`. They abstain where a field is missing.

`idle-allocation`: somebody holds the GPU (a label says so, or its memory is in use) and nothing ran
for `IDLE_SECONDS` on end. `clock-throttle`: the mean SM clock at work lies below the median of GPUs
of the same kind by `PRACTICAL` and by `STATISTICAL` robust deviations (median and MAD, which half of
the fleet may break without moving), and the device itself gives a reason. A GPU that only its power
limit holds down counts if it draws no more than its peers: one that draws more works harder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from computeflow.ledger import Claim, Evidence, Finding, Remedy
from computeflow.telemetry.metrics.facts import Abstained
from computeflow.telemetry.metrics.fields import BY_POWER, NEEDED
from computeflow.telemetry.metrics.measure import (
    BUSY,
    IDLE_SECONDS,
    Flags,
    Timeline,
    busy_clock,
    mean,
    reason_flags,
    runs,
)
from computeflow.telemetry.metrics.samples import Fleet
from computeflow.units import format_seconds, format_share, format_si

PRACTICAL = 0.05
STATISTICAL = 5.0
COHORT = 4
SAMPLES = 5
_LEAST_SPREAD = 0.005
"""Of the median: clocks move in steps of 15 MHz, so a spread of nothing is none."""
_IDLE_SAMPLES = 3
_REASON = 0.1
"""The least share of busy time that makes a reason one."""
_MORE_POWER = 1.05
_MOST_EVIDENCE = 16
_CONFIDENCE = {"idle-allocation": 0.95, "clock-throttle": 0.95}
"""On the synthetic fleets of docs/sources/metrics.md nothing was found wrongly; no real fleet with
known faults was at hand, hence not 1."""


@dataclass(frozen=True, slots=True)
class Clocked:
    line: Timeline
    clock: float
    seconds: float
    power: float | None
    reasons: dict[str, float] | None
    """Share of the busy time; None where no signal tells."""


def find(
    fleet: Fleet, lines: Sequence[Timeline], where: str
) -> tuple[list[Finding], list[Abstained]]:
    """`where`: the files or the address, for the evidence."""
    idle, idle_missing = _idle(fleet, lines, where)
    slow, slow_missing = _throttled(fleet, lines, where)
    return [*idle, *slow], [*idle_missing, *slow_missing]


def label(line: Timeline) -> str:
    device = line.device
    gpu = f"GPU {device.gpu or device.uuid}"
    return f"{device.node} {gpu}" if device.node else gpu


def stretches(line: Timeline, chosen: Flags) -> list[tuple[float, float]]:
    """Runs of chosen samples as (start, seconds); a hole in the samples ends one."""
    return [
        (float(line.times[run[0]]), float(line.seconds[run].sum())) for run in runs(line, chosen)
    ]


def _idle(
    fleet: Fleet, lines: Sequence[Timeline], where: str
) -> tuple[list[Finding], list[Abstained]]:
    rule = "idle-allocation"
    if not lines:
        return [], [Abstained(rule=rule, missing=NEEDED["utilisation"])]
    timed = [line for line in lines if line.timed]
    longest = max((float(line.times[-1] - line.times[0]) for line in timed), default=0.0)
    if longest < IDLE_SECONDS:
        return [], [Abstained(rule=rule, missing=f"{IDLE_SECONDS / 60:.0f} minutes of samples")]
    abstained = []
    silent = [line for line in timed if (~line.known & (line.active <= 0)).any()]
    if silent:
        missing = f"who holds {len(silent)} inactive GPUs: pod or job labels, or "
        abstained.append(Abstained(rule=rule, missing=missing + NEEDED["memory_used"]))
    groups: dict[tuple[str, str], list[tuple[Timeline, list[tuple[float, float]]]]] = {}
    for line in timed:
        long = [
            run
            for run in stretches(line, line.idle)
            if run[1] >= max(IDLE_SECONDS, _IDLE_SAMPLES * line.step)
        ]
        if long:
            holders = ", ".join(sorted(_holders(fleet, line)))
            groups.setdefault((line.device.node, holders), []).append((line, long))
    return [_idle_finding(*key, found, where) for key, found in groups.items()], abstained


def _holders(fleet: Fleet, line: Timeline) -> set[str]:
    names = list(fleet.workloads)
    chosen = np.unique(line.workload[line.idle])
    return {names[index] for index in chosen if index}


def _idle_finding(
    node: str,
    holders: str,
    found: Sequence[tuple[Timeline, list[tuple[float, float]]]],
    where: str,
) -> Finding:
    seconds = sum(run[1] for _, long in found for run in long)
    evidence = []
    for line, long in found[:_MOST_EVIDENCE]:
        memory, power = line.value("memory_used")[line.idle], line.value("power")[line.idle]
        parts = [f"{label(line)}: {line.signal.replace('_', ' ')} 0"]
        if not np.isnan(memory).all():
            parts.append(f"{format_si(float(np.nanmax(memory)), 'B')} of memory in use")
        if not np.isnan(power).all():
            parts.append(f"{float(np.nanmean(power)):.0f} W")
        longest = max(run[1] for run in long)
        evidence.append(Evidence(what=", ".join(parts), where=where, value=longest, unit="s"))
    count = f"{len(found)} GPUs" if len(found) > 1 else label(found[0][0])
    of = f" of {node}" if node and len(found) > 1 else ""
    by = f", held by {holders}," if holders else ", with memory in use,"
    return Finding(
        rule="idle-allocation",
        title=f"{count}{of}{by} ran nothing for {format_seconds(seconds / len(found))}",
        account="idle",
        claims=(Claim(account="idle", gpu_seconds=seconds),),
        evidence=tuple(evidence),
        confidence=_CONFIDENCE["idle-allocation"],
        remedy=Remedy(
            change="end the allocation when its work ends, or give the GPUs something to do",
            gain_gpu_seconds=seconds,
            risk="a process that is only waiting (a debugger, a notebook) ends with it",
        ),
    )


def _throttled(
    fleet: Fleet, lines: Sequence[Timeline], where: str
) -> tuple[list[Finding], list[Abstained]]:
    rule = "clock-throttle"
    devices = fleet.gpus.values()
    absent = [] if lines else [NEEDED["utilisation"]]
    absent += [] if any("clock" in device.tracks for device in devices) else [NEEDED["clock"]]
    if absent:
        return [], [Abstained(rule=rule, missing=", ".join(absent))]
    clocked = [found for line in lines if (found := _clocked(line)) is not None]
    cohorts = _cohorts(fleet, clocked)
    if not cohorts:
        missing = f"{COHORT} GPUs of one model at work, {SAMPLES} samples each with times"
        return [], [Abstained(rule=rule, missing=missing)]
    findings, unknown = [], []
    for peers in cohorts:
        for one, usual in _below(peers):
            if one.reasons is None:
                share = 1 - one.clock / usual
                unknown.append(f"{label(one.line)} runs {format_share(share)} under its peers")
                continue
            reasons = _blamed(one, peers)
            if reasons:
                findings.append(_slow_finding(one, usual, reasons, len(peers) - 1, where))
    silent = sum(one.reasons is None for one in clocked)
    if not silent:
        return findings, []
    seen = f"; {'; '.join(unknown[:_MOST_EVIDENCE])}: cause unknown" if unknown else ""
    missing = f"{NEEDED['reasons']}, on {silent} of {len(clocked)} GPUs{seen}"
    return findings, [Abstained(rule=rule, missing=missing)]


def _clocked(line: Timeline) -> Clocked | None:
    clock, samples, seconds = busy_clock(line)
    if clock is None or samples < SAMPLES or not line.timed or seconds <= 0:
        return None
    busy = line.active >= BUSY
    weights = np.where(busy, line.seconds, 0.0)
    flags = reason_flags(line)
    shares = None
    if flags is not None:
        shares = {
            name: mean(chosen.astype(float), weights) or 0.0 for name, chosen in flags.items()
        }
    power = mean(np.where(busy, line.value("power"), np.nan), weights)
    return Clocked(line, clock, seconds, power, shares)


def _cohorts(fleet: Fleet, clocked: Sequence[Clocked]) -> list[list[Clocked]]:
    """GPUs of one model at the same work; those whose work is too small, with all of their model."""
    names = list(fleet.workloads)
    by_work: dict[tuple[str, str], list[Clocked]] = {}
    for one in clocked:
        works = sorted({stem(names[index]) for index in one.line.device.workloads})
        by_work.setdefault((one.line.device.model, ",".join(works)), []).append(one)
    whole = [group for group in by_work.values() if len(group) >= COHORT]
    placed = {id(one) for group in whole for one in group}
    by_model: dict[str, list[Clocked]] = {}
    for one in clocked:
        if id(one) not in placed:
            by_model.setdefault(one.line.device.model, []).append(one)
    return whole + [group for group in by_model.values() if len(group) >= COHORT]


def stem(workload: str) -> str:
    """What replicas of one job share: `train/llama-worker-3` and `-4`, or `llama-0-x7k2p`."""
    return re.sub(r"(-[0-9]+|-(?=[a-z]*[0-9])[a-z0-9]{5,10})+$", "", workload)


def _below(peers: Sequence[Clocked]) -> list[tuple[Clocked, float]]:
    clocks = np.array([one.clock for one in peers])
    usual = float(np.median(clocks))
    spread = 1.4826 * float(np.median(np.abs(clocks - usual)))
    spread = max(spread, _LEAST_SPREAD * usual)
    least = max(PRACTICAL * usual, STATISTICAL * spread)
    return [(one, usual) for one in peers if usual - one.clock >= least]


def _blamed(one: Clocked, peers: Sequence[Clocked]) -> dict[str, float]:
    """The device's own reasons, most first: those its peers show less, else all; none is no finding."""
    assert one.reasons is not None
    shown = {name: share for name, share in one.reasons.items() if share >= _REASON}
    own = {
        name: share
        for name, share in shown.items()
        if share >= _REASON + float(np.median([(p.reasons or {}).get(name, 0.0) for p in peers]))
    }
    chosen = own or shown
    if chosen and set(chosen) <= BY_POWER:
        drawn = [p.power for p in peers if p.power is not None]
        if one.power is None or not drawn or one.power > _MORE_POWER * float(np.median(drawn)):
            return {}
    return dict(sorted(chosen.items(), key=lambda item: -item[1]))


def _slow_finding(
    one: Clocked, usual: float, reasons: dict[str, float], others: int, where: str
) -> Finding:
    lost = one.seconds * (1 - one.clock / usual)
    said = ", ".join(
        f"{name} ({format_share(share)} of its busy time)" for name, share in reasons.items()
    )
    evidence = [
        Evidence(what=f"mean SM clock at work, against the median of {others + 1} of its kind",
                 where=where, value=one.clock, unit="Hz", expected=usual),
        Evidence(what=f"the device's own reasons: {said}", where=where,
                 value=next(iter(reasons.values())), unit="share of busy time"),
    ]  # fmt: skip
    hot = one.line.value("temperature")
    if not np.isnan(hot).all():
        evidence.append(Evidence(what="highest temperature", where=where,
                                 value=float(np.nanmax(hot)), unit="°C"))  # fmt: skip
    return Finding(
        rule="clock-throttle",
        title=f"{label(one.line)} clocks {format_share(1 - one.clock / usual)} under {others} peers: "
        f"{', '.join(reasons)}",
        account="compute.clock",
        claims=(Claim(account="compute.clock", gpu_seconds=lost),),
        evidence=tuple(evidence),
        confidence=_CONFIDENCE["clock-throttle"],
        remedy=Remedy(change=_change(set(reasons)), gain_gpu_seconds=lost),
    )


def _change(reasons: set[str]) -> str:
    if any("thermal" in name or "hot" in name or name == "hardware slowdown" for name in reasons):
        return "look at its cooling (fans, inlet, cold plate); drain the node until it is mended"
    if "power brake" in reasons:
        return "look at the node's power supplies and the rack's power limit"
    if reasons <= BY_POWER | {"board limit violation"}:
        return "compare its power limit with its peers' (nvidia-smi -q -d POWER) and raise it"
    if "clocks setting" in reasons:
        return "lift the clocks that were set on it (nvidia-smi --reset-gpu-clocks)"
    return "compare the device's settings with its peers' (nvidia-smi -q -d PERFORMANCE,CLOCK)"
