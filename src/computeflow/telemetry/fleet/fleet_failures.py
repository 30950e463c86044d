"""Lost work and restarts of a fleet, by the node that caused them where one did: `find_failures`.

An attempt is blamed on a node where a fault that asks for draining it came in the 15 minutes before the
attempt's end; or where Slurm says that its only node failed; or on a suspect node among its own, in the
part of that node's failures which its users' jobs elsewhere do not explain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from computeflow.telemetry.accounting.attempts_by_node import node_names, short_name
from computeflow.telemetry.accounting.fault_attribution import attribute_faults
from computeflow.telemetry.accounting.jobs import Indices
from computeflow.telemetry.accounting.scheduler_values import SITE_FAILURES
from computeflow.telemetry.accounting.suspect_nodes import SuspectNode
from computeflow.telemetry.fleet.allocations import Allocations
from computeflow.telemetry.fleet.fleet_facts import FailingNode, Loss
from computeflow.telemetry.kernel_logs.messages import classify_xid
from computeflow.telemetry.kernel_logs.node_faults import NodeFault
from computeflow.telemetry.source_reports import Event, SourceReport

_DRAIN = "drain the node"
"""How the tables of kernel messages word that a fault is the node's, and not the job's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFailures:
    nodes: tuple[FailingNode, ...]
    losses: tuple[Loss, ...]
    unsure_gpu_seconds: float


@dataclass(frozen=True, slots=True)
class _Blame:
    node: str
    part: float
    """Part of the attempt's loss that the node explains."""
    fault: str = ""


def find_failures(
    held: Allocations,
    suspects: Sequence[SuspectNode],
    reports: Sequence[SourceReport],
    logged: Sequence[tuple[int, Loss]],
    with_log: Iterable[int],
) -> FleetFailures:
    """`logged`: losses that logs show, by attempt; `with_log`: attempts of jobs that have one."""
    share = held.columns.share
    failed = np.flatnonzero(held.began & (share.failed | (share.unsure > 0)))
    faults = _attributed(held, failed, reports)
    blames = faults | _by_suspects(held, failed, suspects, faults)
    losses = [*_booked(held), *logged]
    known = set(with_log)
    unsure = {int(a): float(share.unsure[a]) for a in failed if int(a) not in known}
    nodes = [
        _failing_node(node, suspects, blames, losses, unsure, held)
        for node in dict.fromkeys(blame.node for blame in blames.values())
    ]
    rest = [loss for attempt, loss in losses if attempt not in blames and _size(loss) > 0]
    return FleetFailures(
        nodes=tuple(sorted(nodes, key=lambda n: -n.lost_gpu_seconds - n.restart_gpu_seconds)),
        losses=tuple(sorted(rest, key=lambda loss: -_size(loss))),
        unsure_gpu_seconds=math.fsum(unsure.values()),
    )


def _size(loss: Loss) -> float:
    return loss.lost_gpu_seconds + loss.restart_gpu_seconds


def _part(loss: Loss, part: float) -> Loss:
    return replace(
        loss,
        lost_gpu_seconds=loss.lost_gpu_seconds * part,
        restart_gpu_seconds=loss.restart_gpu_seconds * part,
    )


def _booked(held: Allocations) -> list[tuple[int, Loss]]:
    """Losses that the accounting's ledger has: attempts that were not retried, gaps between steps."""
    share = held.columns.share
    rows = []
    for index in np.flatnonzero((share.lost > 0) | (share.restart > 0)):
        row = held.columns.jobs.row(int(index))
        rows.append(
            (
                int(index),
                Loss(
                    job=row.job,
                    user=row.user,
                    name=row.name,
                    state=row.state,
                    gpus=row.gpus,
                    end=row.end,
                    lost_gpu_seconds=float(share.lost[index]),
                    restart_gpu_seconds=float(share.restart[index]),
                    known_by="not retried" if share.lost[index] > 0 else "job steps",
                ),
            )
        )
    return rows


def _attributed(
    held: Allocations, failed: Indices, reports: Sequence[SourceReport]
) -> dict[int, _Blame]:
    """Blames by faults and by Slurm's own word."""
    jobs = held.columns.jobs
    rows = {int(attempt): jobs.row(int(attempt)) for attempt in failed}
    events = [event for report in reports for event in _node_faults(report)]
    found = attribute_faults(rows.values(), events)
    at = {(one.job, one.fault_seconds + one.between_seconds): one for one in found.jobs}
    blames = {}
    for attempt, row in rows.items():
        one = at.get((row.job, row.end or math.nan))
        nodes = node_names(row.nodes)
        if one is not None:
            blames[attempt] = _Blame(one.node, 1.0, one.what)
        elif row.state in SITE_FAILURES and len(nodes) == 1:
            blames[attempt] = _Blame(nodes[0], 1.0, row.state)
    return blames


def _node_faults(report: SourceReport) -> list[Event]:
    """Faults that are the node's own. In metrics a fault names the job that held the GPU; here it is
    joined by node and time.
    """
    if report.kind == "kernel-log":
        draining = {(one.node, one.what) for one in report.facts.faults if _drains(one)}
        return [event for event in report.happenings if (event.node, event.what) in draining]
    return [
        replace(event, job="")
        for event in report.happenings
        if event.fault and _is_nodes_xid(event.what)
    ]


def _drains(fault: NodeFault) -> bool:
    return fault.fault and _DRAIN in fault.action


def _is_nodes_xid(what: str) -> bool:
    name, _, code = what.partition(" ")
    return name == "xid" and code.isdecimal() and _DRAIN in classify_xid(int(code)).action


def _by_suspects(
    held: Allocations,
    failed: Indices,
    suspects: Sequence[SuspectNode],
    known: Mapping[int, _Blame],
) -> dict[int, _Blame]:
    """Blames on suspect nodes, the least likely by chance first."""
    excess = {one.node: 1.0 - min(one.expected / one.failed, 1.0) for one in suspects}
    blames: dict[int, _Blame] = {}
    if not excess:
        return blames
    for attempt in map(int, failed):
        nodes = set(node_names(held.columns.jobs.row(attempt).nodes))
        node = next((name for name in excess if name in nodes), None)
        if node is not None and attempt not in known:
            blames[attempt] = _Blame(node, excess[node])
    return blames


def _failing_node(
    node: str,
    suspects: Sequence[SuspectNode],
    blames: Mapping[int, _Blame],
    losses: Sequence[tuple[int, Loss]],
    unsure: Mapping[int, float],
    held: Allocations,
) -> FailingNode:
    own = {attempt: blame for attempt, blame in blames.items() if blame.node == node}
    parts = [_part(loss, own[a].part) for a, loss in losses if a in own]
    suspect = next((one for one in suspects if short_name(one.node) == node), None)
    return FailingNode(
        node=node,
        jobs=None if suspect is None else suspect.jobs,
        failed=len({held.job_of(attempt) for attempt in own}),
        expected=None if suspect is None else suspect.expected,
        chance=None if suspect is None else suspect.chance,
        faults=tuple(dict.fromkeys(blame.fault for blame in own.values() if blame.fault)),
        lost_gpu_seconds=math.fsum(loss.lost_gpu_seconds for loss in parts),
        restart_gpu_seconds=math.fsum(loss.restart_gpu_seconds for loss in parts),
        unsure_gpu_seconds=math.fsum(unsure.get(attempt, 0.0) for attempt in own),
        losses=tuple(sorted(parts, key=lambda loss: -_size(loss))),
    )
