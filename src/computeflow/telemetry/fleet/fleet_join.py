"""`join_fleet`: accounting and what else was recorded of the same fleet, as one report and ledger.

The ledger is the accounting's (GPUs of the cluster x the period), with time moved out of `compute`
where another source shows what it was:

    idle               held by a job, and nothing ran for ten minutes or more (metrics)
    lost, restart      steps done again, and the way there, inside of an allocation (job logs)

An attempt that is booked as lost stays lost as a whole, whatever its GPUs did. Sources of other nodes,
jobs or times are not joined, and the facts say why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from computeflow.ledger import Entry, Ledger
from computeflow.telemetry.accounting.attempts_by_node import short_name
from computeflow.telemetry.accounting.queue_idle import split_idle
from computeflow.telemetry.accounting.usage import Accounting
from computeflow.telemetry.fleet.allocations import Allocations
from computeflow.telemetry.fleet.fleet_facts import FleetFacts, Loss, Scheduler
from computeflow.telemetry.fleet.fleet_failures import find_failures
from computeflow.telemetry.fleet.held_idle import idle_jobs, slowed_gpus
from computeflow.telemetry.fleet.job_logs import JobLog, match_logs, restart_losses
from computeflow.telemetry.logs.log_facts import LoggedRun
from computeflow.telemetry.metrics.gpu_facts import MetricsFacts
from computeflow.telemetry.outages.outage_source import KIND as OUTAGES
from computeflow.telemetry.outages.outage_source import OutageFacts
from computeflow.telemetry.source_reports import SourceReport

KIND = "fleet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    report: SourceReport
    """Its `columns` are the metrics that were joined."""
    joined: tuple[bool, ...]
    """Whether each of the reports is part of the fleet."""


def join_fleet(observed: Sequence[SourceReport]) -> Fleet | None:
    """The fleet of the only accounting among the reports; None without one that has a ledger."""
    accounts = [each for each in observed if each.kind == "accounting" and each.ledger is not None]
    if len(accounts) != 1 or accounts[0].columns is None:
        return None
    account = accounts[0]
    assert account.ledger is not None
    window = account.ledger.window
    assert window.start_seconds is not None and window.end_seconds is not None
    held = Allocations(account.columns, window.start_seconds, window.end_seconds)
    logs = match_logs([each for each in observed if each.kind == "log"], held)
    kept = [each is account or _belongs(each, held, logs) for each in observed]
    joined = [each for each, ours in zip(observed, kept, strict=True) if ours]
    apart = [
        _why_apart(each, held)
        for each, ours in zip(observed, kept, strict=True)
        if not ours and _could_belong(each)
    ]
    report = _join(account, account.ledger, held, joined, logs, apart)
    return Fleet(report=report, joined=tuple(kept))


def _join(
    account: SourceReport,
    booked: Ledger,
    held: Allocations,
    joined: Sequence[SourceReport],
    logs: Sequence[JobLog],
    apart: Sequence[str],
) -> SourceReport:
    facts: Accounting = account.facts
    assert facts.gpus is not None
    metrics = [each.facts for each in joined if each.kind == "metrics"]
    logged = [pair for log in logs for pair in restart_losses(log, held)]
    idle = idle_jobs(metrics, held)
    logged = _within_jobs(logged, {row.job: row.gpu_seconds for row in idle}, held)
    failures = find_failures(
        held,
        facts.suspects,
        [each for each in joined if each.kind in ("kernel-log", "metrics")],
        logged,
        [attempt for log in logs for attempt in log.attempts],
    )
    queue = split_idle(
        held.columns.jobs,
        held.columns.nodes,
        held.first,
        held.last,
        gpus=facts.gpus,
        idle=booked.booked("idle"),
        placed=facts.gpus_from == "nodes",
    )
    runs: dict[str, LoggedRun] = {log.job: log.run for log in logs}
    held_idle = math.fsum(row.gpu_seconds for row in idle)
    found = FleetFacts(
        start=held.first,
        end=held.last,
        gpus=facts.gpus,
        scheduler=_scheduler(held, metrics),
        joined=tuple(dict.fromkeys(each.kind for each in joined)),
        apart=tuple(apart),
        queue=queue,
        held_idle_gpu_seconds=held_idle,
        idle_jobs=idle,
        failing_nodes=failures.nodes,
        losses=failures.losses,
        unsure_gpu_seconds=failures.unsure_gpu_seconds,
        slowed=slowed_gpus(metrics, held, runs),
        nodes_out=facts.nodes_out,
    )
    return SourceReport(
        kind=KIND,
        sources=tuple(path for each in joined for path in each.sources),
        facts=found,
        ledger=_ledger(booked, found, [loss for _, loss in logged], steps=bool(logs)),
        notes=tuple(apart),
        columns=tuple(each for each in joined if each.kind == "metrics"),
    )


def _within_jobs(
    logged: Sequence[tuple[int, Loss]], idle: dict[str, float], held: Allocations
) -> list[tuple[int, Loss]]:
    """Losses in logs, no more of a job than its compute has; attempts booked as lost have none."""
    share = held.columns.share
    room = {
        job: math.fsum(
            float(share.used[a] - share.restart[a] - share.lost[a]) for a in held.by_job[job]
        )
        - idle.get(job, 0.0)
        for job in {loss.job for _, loss in logged}
    }
    kept = []
    for attempt, loss in logged:
        whole = loss.lost_gpu_seconds + loss.restart_gpu_seconds
        part = min(1.0, max(room[loss.job], 0.0) / whole) if whole else 0.0
        room[loss.job] -= part * whole
        kept.append(
            (
                attempt,
                replace(
                    loss,
                    lost_gpu_seconds=part * loss.lost_gpu_seconds,
                    restart_gpu_seconds=part * loss.restart_gpu_seconds,
                ),
            )
        )
    return kept


def _ledger(booked: Ledger, facts: FleetFacts, logged: Sequence[Loss], *, steps: bool) -> Ledger:
    """The accounting's ledger with what other sources show moved out of `compute`."""
    moved = {
        "idle": facts.held_idle_gpu_seconds,
        "lost": math.fsum(loss.lost_gpu_seconds for loss in logged),
        "restart": math.fsum(loss.restart_gpu_seconds for loss in logged),
    }
    entries = []
    for entry in booked.entries:
        more = moved.pop(entry.account, 0.0)
        if entry.account == "compute":
            rest = max(entry.gpu_seconds - facts.held_idle_gpu_seconds - _sum(logged), 0.0)
            part = rest / entry.gpu_seconds
            joules = None if entry.joules is None else part * entry.joules
            entries.append(replace(entry, gpu_seconds=rest, joules=joules))
        elif more:
            entries.append(replace(entry, gpu_seconds=entry.gpu_seconds + more, joules=None))
        else:
            entries.append(entry)
    entries += [Entry(account=name, gpu_seconds=s) for name, s in moved.items() if s > 0]
    missing = dict(booked.unavailable)
    missing["straggler"] = "logs of the jobs, beside metrics"
    if steps:
        missing.pop("restart", None)
    if not facts.unsure_gpu_seconds and "lost" in missing and "checkpoints" in missing["lost"]:
        del missing["lost"]
    return replace(
        booked,
        entries=tuple(entries),
        window=replace(booked.window, label="the fleet"),
        unavailable=missing,
        booked_under={**booked.booked_under, "straggler": "compute"},
    )


def _sum(losses: Sequence[Loss]) -> float:
    return math.fsum(loss.lost_gpu_seconds + loss.restart_gpu_seconds for loss in losses)


def _scheduler(held: Allocations, metrics: Sequence[MetricsFacts]) -> Scheduler:
    if held.columns.slurm:
        return "slurm"
    holders = (name for facts in metrics for gpu in facts.gpus for name in gpu.workloads)
    return "kubernetes" if any("/" in name for name in holders) else ""


def why_not_joined(observed: Sequence[SourceReport]) -> tuple[str, ...]:
    """Sources beside accounting of which no fleet is made, and why each is judged apart."""
    accounts = [each for each in observed if each.kind == "accounting"]
    if not accounts:
        return ()
    reason = accounts[0].ledger_reason or "its jobs have neither nodes nor times"
    return tuple(
        f"{_named(each)}: judged apart from {_named(accounts[0])}, nothing shows that they are of one "
        f"cluster and period ({reason})"
        for each in observed
        if _could_belong(each)
    )


def _could_belong(report: SourceReport) -> bool:
    kinds = ("metrics", "kernel-log", OUTAGES)
    return report.kind in kinds or isinstance(report.facts, LoggedRun)


def _belongs(report: SourceReport, held: Allocations, logs: Sequence[JobLog]) -> bool:
    """Whether a source is of the accounting's nodes (or jobs) and period."""
    if report.kind == "metrics":
        return _overlaps(report.facts.start, report.facts.end, held) and any(
            short_name(gpu.node) in held.nodes or held.by_job.keys() & set(gpu.workloads)
            for gpu in report.facts.gpus
        )
    if report.kind == "kernel-log":
        return any(
            short_name(span.owner) in held.nodes
            and (span.clock != "unix" or _overlaps(span.first, span.last, held))
            for span in report.facts.spans
        )
    return any(log.report is report for log in logs)


def _overlaps(start: float | None, end: float | None, held: Allocations) -> bool:
    return start is not None and end is not None and start < held.last and end > held.first


def _why_apart(report: SourceReport, held: Allocations) -> str:
    if report.kind == "log":
        return f"{_named(report)}: judged apart, its name has the ID of no job that ran at its time"
    if report.kind == OUTAGES and _outages_are_ours(report.facts, held):
        return f"{_named(report)}: judged apart, what its nodes idle is idle in the accounting, too"
    return f"{_named(report)}: judged apart, no node and time in common with the accounting"


def _outages_are_ours(facts: OutageFacts, held: Allocations) -> bool:
    ours = any(short_name(node) in held.nodes for node in facts.node_names)
    return ours and not facts.counted and _overlaps(facts.start, facts.end, held)


def _named(report: SourceReport) -> str:
    return ", ".join(PurePath(path).name or path for path in report.sources[:2])
