"""Rules on nodes and jobs at this moment: what costs nobody a step yet, or cannot be seen in steps.

A node's fault that slows or ends a job is evidence of the finding on that job; these rules report it
where no such finding is open. What it will cost is not known: only idle GPUs claim time.
"""

from __future__ import annotations

from computeflow.diagnosis.rule import Outcome, report, seconds_evidence
from computeflow.diagnosis.scheduler_commands import drain_command
from computeflow.ledger import Evidence, Remedy
from computeflow.telemetry.live.live_states import (
    CounterGrowth,
    LiveJobState,
    LiveNodeState,
    ToldFault,
)
from computeflow.telemetry.metrics.exporter_fields import SETTINGS
from computeflow.telemetry.metrics.gpu_facts import IDLE_SECONDS
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import format_count, format_seconds

_DRAIN = "drain the node"
"""In the action of a fault: the node is to take no further jobs."""
_ENDS_JOBS = frozenset({"xid 94"})
"""Errors of a device's memory that end the job which they hit, though the node may stay."""
SILENT_SECONDS = 15.0
"""Seconds without a word of an agent after which it is silent: it sends one every five."""
_SLOW_SECONDS = 60.0
_MAX_EVIDENCE = 8
_RATES = {
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("PCIe replays", 8 / 60),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": ("NVLink CRC errors", 100.0),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": ("NVLink replays", 0.0),
    "computeflow_infiniband_link_downed_total": ("InfiniBand link downs", 0.0),
}
"""Errors of links in a second above which they count: the limits of DCGM's health checks
(dcgm_gpu_hardware_limits.h of NVIDIA/DCGM: 8 replays a minute, 100 CRC errors a second, any replay of
NVLink); a link that went down counts once."""


def failing_node(observed: SourceReport) -> Outcome:
    """Faults that ask for draining the node, or end the job on it."""
    state: LiveNodeState = observed.facts
    faults = [each for each in state.faults if _DRAIN in each.action or each.what in _ENDS_JOBS]
    if not faults:
        return []
    last = faults[-1]
    meaning = f" ({last.meaning})" if last.meaning else ""
    return report(
        f"{state.node} reports {last.what}{meaning}{_with_ranks(state)}",
        [("lost", 0.0)],
        [_fault_evidence(each, state.node) for each in faults[-_MAX_EVIDENCE:]],
        Remedy(
            change=f"{last.action}; let its job save and move before it fails",
            command=drain_command(state.node, last.what, "") if _DRAIN in last.action else "",
        ),
    )


def _with_ranks(state: LiveNodeState) -> str:
    return f"; {format_count(state.ranks, 'rank')} of jobs on it" if state.ranks else ""


def _fault_evidence(fault: ToldFault, node: str) -> Evidence:
    where = f"{node} {fault.gpu}".strip()
    return Evidence(what=f"{fault.what} {fault.detail}".strip()[:200], where=where)


def clock_throttle(observed: SourceReport) -> Outcome:
    """GPUs that heat, a power brake or their own protection slow for a minute under a job."""
    state: LiveNodeState = observed.facts
    slow = [
        each
        for each in state.slowed
        if each.seconds >= _SLOW_SECONDS and set(each.reasons) - SETTINGS
    ]
    if not slow or not state.ranks:
        return []
    named = ", ".join(dict.fromkeys(name for each in slow for name in each.reasons))
    return report(
        f"{format_count(len(slow), 'GPU')} of {state.node} clock{'s' * (len(slow) == 1)} lower for "
        f"{format_seconds(max(each.seconds for each in slow))}: {named}{_with_ranks(state)}",
        [("compute.clock", 0.0)],
        [
            seconds_evidence(
                f"reasons that the device reports: {', '.join(each.reasons)}",
                f"{state.node} GPU {each.gpu}",
                each.seconds,
            )
            for each in slow[:_MAX_EVIDENCE]
        ],
        Remedy(change="check cooling and power supplies of the node; drain it if it stays"),
    )


def link_errors(observed: SourceReport) -> Outcome:
    """Links with more errors than their maker takes for healthy."""
    state: LiveNodeState = observed.facts
    bad = [each for each in state.grown if _is_much(each)]
    if not bad or not state.ranks:
        return []
    named = ", ".join(
        dict.fromkeys(f"{each.grown:,.0f} {_RATES[each.name][0]}" for each in bad[:3])
    )
    return report(
        f"links of {state.node} have errors: {named} in "
        f"{format_seconds(max(each.seconds for each in bad))}{_with_ranks(state)}",
        [("comm", 0.0)],
        [
            Evidence(
                what=_RATES[each.name][0],
                where=f"{state.node} {each.device}".strip(),
                value=each.grown,
                expected=_RATES[each.name][1] * each.seconds,
            )
            for each in bad[:_MAX_EVIDENCE]
        ],
        Remedy(change="reseat or replace the cable or the card; drain the node if errors go on"),
    )


def _is_much(growth: CounterGrowth) -> bool:
    limit = _RATES.get(growth.name)
    return limit is not None and growth.seconds > 0 and growth.grown > limit[1] * growth.seconds


def silent_agent(observed: SourceReport) -> Outcome:
    """An agent that says nothing, while the ranks on its node must live or nothing tells of them."""
    state: LiveNodeState = observed.facts
    if state.silent_seconds < SILENT_SECONDS or not state.ranks:
        return []
    lives = (
        "its ranks are alive, as other ranks go on" if state.trains else "its ranks are not seen"
    )
    return report(
        f"{state.node} has been silent for {format_seconds(state.silent_seconds)}: {lives}"
        f"{_with_ranks(state)}",
        [("idle", 0.0)],
        [seconds_evidence("since its agent was heard", state.node, state.silent_seconds, 5.0)],
        Remedy(
            change="check that the node can be reached and that its agent runs; what ranks record "
            "meanwhile is sent once it is back",
            command="systemctl status computeflow-agent",
        ),
    )


def idle_allocation(observed: SourceReport) -> Outcome:
    """A job that holds ranks for ten minutes and does no step, and no GPU that says it is active."""
    state: LiveJobState = observed.facts
    if state.stepless_seconds < IDLE_SECONDS:
        return []
    tells = state.inactive_seconds is not None
    if tells and (state.inactive_seconds or 0.0) < IDLE_SECONDS:
        return []  # it compiles, or loads
    if state.steps and not tells:
        return []  # an evaluation, a save: a hang is another rule's
    since = f"with no step after step {state.steps:,}" if state.steps else "with no step yet"
    what = "GPU" if state.device != "cpu" else "rank"
    lost = state.stepless_seconds * state.ranks
    return report(
        f"the job has held {format_count(state.ranks, what)} for "
        f"{format_seconds(state.stepless_seconds)} {since}",
        [("idle", lost)],
        [
            seconds_evidence(
                "since its last step or its start", "processes", state.stepless_seconds
            ),
            *(
                [
                    seconds_evidence(
                        "no GPU was active", ", ".join(state.nodes[:3]), state.inactive_seconds
                    )
                ]
                if tells
                else []
            ),
        ],
        Remedy(
            change="release the GPUs, or find what the job waits for (py-spy dump, its last log lines)",
            gain_gpu_seconds=lost,
            risk="a process that only waits (a debugger, a notebook) ends with the allocation",
        ),
    )
