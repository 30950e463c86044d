"""Rules on a fleet: accounting joined with metrics, kernel logs and job logs of the same nodes.

Losses, idle time and nodes are disjoint in the facts, so no GPU-second is claimed by two rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from computeflow.diagnosis.rule import Draft, Missing, Outcome, report, seconds_evidence
from computeflow.diagnosis.scheduler_commands import drain_command, end_command, resume_command
from computeflow.ledger import Evidence, Remedy
from computeflow.telemetry.accounting.queue_idle import MIN_WAIT, REASONS
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import HOUR_SECONDS, format_count, format_seconds

if TYPE_CHECKING:
    from computeflow.telemetry.accounting.queue_idle import QueueIdle, WaitingJob
    from computeflow.telemetry.fleet.fleet_facts import FailingNode, FleetFacts, IdleJob, Loss

MIN_SHARE = 0.02
"""Least share of the fleet's time for what every busy cluster has some of."""
_SHOWN = 5
METRICS = Missing("metrics of the accounting's nodes: dcgm-exporter, or a Prometheus server")
_LOGS = Missing(
    "logs of jobs that failed and were retried, with the job's ID in their name (slurm-%j.out): "
    "what was done again"
)
_WHY = {
    "spread": "enough were free, but spread over too many nodes",
    "held": "nodes were free: a priority, a limit or a reservation held jobs back",
    "short": "fewer were free than the smallest job waiting asks for",
    "unplaced": "on which nodes is unknown",
}
_QUEUE_REMEDIES = {
    "spread": (
        "pack small jobs onto few nodes, so that whole nodes stay free",
        "in slurm.conf: SchedulerParameters=pack_serial_at_end, no LLN; then scontrol reconfigure",
    ),
    "held": (
        "look up why the waiting jobs are held, and lift the limit that nothing needs",
        "squeue --states=PD --format='%i %u %P %b %r'",
    ),
    "short": (
        "let smaller jobs run ahead of the large one: time limits close to what jobs take, so that "
        "backfill finds room",
        "scontrol update jobid=JOB timelimit=LIMIT",
    ),
    "unplaced": ("add the list of nodes, to see why they were idle", "scontrol show node"),
}


def failing_node(observed: SourceReport) -> Outcome:
    facts: FleetFacts = observed.facts
    return [draft for node in facts.failing_nodes for draft in _failing(node, facts, observed)]


def _failing(node: FailingNode, facts: FleetFacts, observed: SourceReport) -> list[Draft]:
    where = _where(observed)
    claims = [("lost", node.lost_gpu_seconds), ("restart", node.restart_gpu_seconds)]
    evidence = []
    if node.chance is not None:
        evidence.append(
            Evidence(
                what=f"{node.failed} of {node.jobs} jobs failed on {node.node}; by their users' other "
                f"jobs {node.expected:.1f} would (chance below {node.chance:.1g})",
                where=where,
                value=float(node.failed),
                unit="jobs",
                expected=node.expected,
            )
        )
    if node.faults:
        named = ", ".join(node.faults[:_SHOWN])
        evidence.append(Evidence(what=f"before failures, on the node: {named}", where=where))
    evidence += [_loss_evidence(loss, where) for loss in node.losses[:_SHOWN]]
    if node.unsure_gpu_seconds:
        evidence.append(
            Evidence(
                what="not included: what failed attempts did again after a retry, which no log shows; "
                f"at most {amount(node.unsure_gpu_seconds)}",
                where=where,
            )
        )
    jobs = f"{node.failed} of {node.jobs} jobs" if node.jobs else format_count(node.failed, "job")
    by = f" ({', '.join(node.faults[:3])})" if node.faults else ""
    reason = f"{jobs} failed" + (f", {node.faults[0]}" if node.faults else "")
    return report(
        f"{node.node} made {jobs} fail{by}",
        [claim for claim in claims if claim[1]] or claims[:1],
        evidence,
        Remedy(
            change=f"drain {node.node} and test it before it takes jobs again",
            command=drain_command(node.node, reason, facts.scheduler),
            gain_gpu_seconds=node.lost_gpu_seconds + node.restart_gpu_seconds,
        ),
    )


def lost_work(observed: SourceReport) -> Outcome:
    """Attempts that failed on sound nodes and that nothing followed."""
    facts: FleetFacts = observed.facts
    losses = [loss for loss in facts.losses if loss.known_by == "not retried"]
    seconds = math.fsum(loss.lost_gpu_seconds for loss in losses)
    if observed.ledger is None or seconds < MIN_SHARE * observed.ledger.gpu_seconds:
        return []
    largest = losses[0]
    user = f" of {largest.user}" if largest.user else ""
    return report(
        f"{format_count(len(losses), 'attempt')} failed on sound nodes and nothing followed; the "
        f"largest is job {largest.job}{user}",
        [("lost", seconds)],
        [_loss_evidence(loss, _where(observed)) for loss in losses[:_SHOWN]],
        Remedy(
            change="find why they failed, in the jobs' own logs; try new code on few GPUs first, and "
            "save checkpoints",
            command=_look_up(losses, facts),
        ),
    )


def _look_up(losses: Sequence[Loss], facts: FleetFacts) -> str:
    if facts.scheduler != "slurm":
        return ""
    named = ",".join(dict.fromkeys(loss.job for loss in losses[:_SHOWN]))
    return f"sacct -D -j {named} --format=JobID,User,State,ExitCode,Elapsed,NodeList"


def restarts(observed: SourceReport) -> Outcome:
    """Restarts that no failing node explains, as job logs or job steps show them."""
    facts: FleetFacts = observed.facts
    missing = [_LOGS] if facts.unsure_gpu_seconds else []
    losses = [loss for loss in facts.losses if loss.known_by != "not retried"]
    restart = math.fsum(loss.restart_gpu_seconds for loss in losses)
    lost = math.fsum(loss.lost_gpu_seconds for loss in losses)
    if not restart + lost:
        return missing
    jobs = len({loss.job for loss in losses})
    often = "once" if len(losses) == 1 else f"{len(losses)} times"
    drafts = report(
        f"{format_count(jobs, 'job')} restarted {often}, {amount(lost)} done again",
        [claim for claim in (("restart", restart), ("lost", lost)) if claim[1]],
        [_loss_evidence(loss, _where(observed)) for loss in losses[:_SHOWN]],
        Remedy(
            change="find the cause in the jobs' logs; save more often to do fewer steps again",
            command=_look_up(losses, facts),
        ),
    )
    return [*drafts, *missing]


def idle_allocation(observed: SourceReport) -> Outcome:
    facts: FleetFacts = observed.facts
    if "metrics" not in facts.joined:
        return METRICS
    return [draft for job in facts.idle_jobs for draft in _idle(job, observed)]


def _idle(job: IdleJob, observed: SourceReport) -> list[Draft]:
    on = ", ".join(job.nodes[:_SHOWN])
    owner = f" of {job.user}" if job.user else ""
    each = format_seconds(job.gpu_seconds / job.gpus)
    ends = end_command(job.job) if job.runs else ""
    return report(
        f"job {job.job}{owner} held {format_count(job.gpus, 'GPU')} on {on} and ran nothing on them "
        f"for {each}",
        [("idle", job.gpu_seconds)],
        [
            seconds_evidence(
                f"job {job.job} ({job.name or 'no name'}), {on}: longest time without activity",
                _where(observed),
                job.longest_seconds,
            )
        ],
        Remedy(
            change=f"end job {job.job}, or give its GPUs work"
            if job.runs
            else f"let jobs{owner} end with their work: this one has ended since",
            command=ends,
            gain_gpu_seconds=job.gpu_seconds,
            risk="a process that only waits (a debugger, a notebook) ends with the allocation",
        ),
    )


def fragmentation(observed: SourceReport) -> Outcome:
    """GPUs that were free while jobs waited for GPUs."""
    facts: FleetFacts = observed.facts
    queue = facts.queue
    seconds = queue.wanted_gpu_seconds
    if observed.ledger is None or seconds < MIN_SHARE * observed.ledger.gpu_seconds:
        return []
    why = max(queue.wanted, key=lambda reason: queue.wanted[reason])
    mean = seconds / observed.ledger.wall_seconds
    change, command = _QUEUE_REMEDIES[why]
    if why == "short" and queue.longest:
        command = command.replace("JOB", queue.longest[0].job)
    return report(
        f"{mean:,.1f} GPUs in the mean were free while {format_count(queue.waited, 'job')} waited: "
        f"{_WHY[why]}",
        [("idle", seconds)],
        [*_queue_evidence(queue, _where(observed))],
        Remedy(
            change=change,
            command=command if facts.scheduler == "slurm" else "",
            gain_high=seconds,
            risk="free GPUs that waiting jobs cannot use as they are: less than all of it may be won",
        ),
    )


def _queue_evidence(queue: QueueIdle, where: str) -> list[Evidence]:
    parts = [
        Evidence(
            what=f"free while jobs waited {MIN_WAIT / 60:.0f} minutes or longer: {_WHY[reason]}",
            where=where,
            value=queue.wanted[reason],
            unit="GPU-s",
        )
        for reason in REASONS
        if reason in queue.wanted
    ]
    return [*parts, *(_waited(job, where) for job in queue.longest[:_SHOWN])]


def _waited(job: WaitingJob, where: str) -> Evidence:
    nodes = f" on {format_count(job.nodes, 'node')}" if job.nodes else ""
    still = ", and still waits" if job.waits else ""
    return seconds_evidence(
        f"job {job.job} waited for {job.gpus:g} GPUs{nodes}{still}", where, job.seconds
    )


def node_out(observed: SourceReport) -> Outcome:
    """Nodes that were out of service when they were listed."""
    facts: FleetFacts = observed.facts
    nodes = [node for node in facts.nodes_out if node.gpu_seconds]
    if not nodes or not facts.queue.out:
        return []
    first = nodes[0]
    why = f" ({first.reason})" if first.reason else ""
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return report(
        f"{first.name}{why}{more} out of service",
        [("idle", facts.queue.out)],
        [
            seconds_evidence(
                f"{node.name}, {node.gpus:g} GPUs, {node.state.lower()}: {node.reason or 'no reason'}",
                _where(observed),
                (node.gpu_seconds or 0.0) / node.gpus,
            )
            for node in nodes[:_SHOWN]
        ],
        Remedy(
            change=f"repair {first.name}, then let it take jobs again",
            command=resume_command(first.name, facts.scheduler),
            gain_high=facts.queue.out,
        ),
    )


def _loss_evidence(loss: Loss, where: str) -> Evidence:
    how = {
        "not retried": "failed, nothing followed",
        "job steps": "restarted within its allocation",
        "log": "restarted, by its log",
    }[loss.known_by]
    return Evidence(
        what=f"job {loss.job}{f' of {loss.user}' if loss.user else ''} ({loss.state}) on "
        f"{loss.gpus:g} GPUs: {how}",
        where=where,
        value=loss.lost_gpu_seconds + loss.restart_gpu_seconds,
        unit="GPU-s",
    )


def amount(gpu_seconds: float) -> str:
    return f"{gpu_seconds / HOUR_SECONDS:,.1f} GPU-h"


def _where(observed: SourceReport) -> str:
    return ", ".join(observed.sources[:3])
