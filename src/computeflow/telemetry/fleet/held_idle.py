"""Metrics joined with allocations: GPUs that a job held idle, and GPUs that were slowed in a job."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from computeflow.telemetry.fleet.allocations import Allocations
from computeflow.telemetry.fleet.fleet_facts import IdleJob, SlowedGpu
from computeflow.telemetry.logs.log_facts import LoggedRun
from computeflow.telemetry.metrics.gpu_facts import Busy, GpuFigures, MetricsFacts

_FEW = 3
"""Least logged points on either side for a median step."""


@dataclass(slots=True)
class _Holding:
    gpus: dict[str, None] = field(default_factory=dict)
    nodes: dict[str, None] = field(default_factory=dict)
    seconds: float = 0.0
    longest: float = 0.0


def idle_jobs(metrics: Sequence[MetricsFacts], held: Allocations) -> tuple[IdleJob, ...]:
    """Idle time inside of allocations by attempt, most GPU-seconds first. Attempts whose work is lost
    are left out: all of their time is booked as lost.
    """
    by_attempt: dict[int, _Holding] = {}
    for gpu in (gpu for facts in metrics for gpu in facts.gpus):
        if gpu.activity is None or gpu.activity.idle is None:
            continue
        for stretch in gpu.activity.idle.stretches:
            end = stretch.start + stretch.seconds
            for piece in held.pieces(gpu.node, stretch.start, end, stretch.holder):
                seconds = held.without_gaps(piece)
                if seconds <= 0 or held.is_lost(piece[0]):
                    continue
                holding = by_attempt.setdefault(piece[0], _Holding())
                holding.gpus[gpu.label] = None
                holding.nodes[gpu.node] = None
                holding.seconds += seconds
                holding.longest = max(holding.longest, seconds)
    rows = [_idle_job(attempt, holding, held) for attempt, holding in by_attempt.items()]
    return tuple(sorted(rows, key=lambda row: (-row.gpu_seconds, row.job)))


def _idle_job(attempt: int, holding: _Holding, held: Allocations) -> IdleJob:
    row, share = held.columns.jobs.row(attempt), held.columns.share
    most = float(share.used[attempt] - share.restart[attempt])
    return IdleJob(
        job=row.job,
        user=row.user,
        name=row.name,
        nodes=tuple(sorted(holding.nodes)),
        gpus=len(holding.gpus),
        gpu_seconds=min(holding.seconds, most),
        longest_seconds=holding.longest,
        runs=held.runs(attempt),
    )


def slowed_gpus(
    metrics: Sequence[MetricsFacts], held: Allocations, logs: Mapping[str, LoggedRun]
) -> tuple[SlowedGpu, ...]:
    rows = []
    for gpu in (gpu for facts in metrics for gpu in facts.gpus):
        for holder, busy in busy_under_holders(gpu):
            rows += _slowed(gpu, holder, busy, held, logs)
    return tuple(rows)


def busy_under_holders(gpu: GpuFigures) -> Iterator[tuple[str, Busy]]:
    """Busy time of a GPU by the job that held it; "" where no label names one."""
    activity = gpu.activity
    if activity is None or activity.busy is None:
        return
    if activity.busy_by_holder:
        yield from activity.busy_by_holder.items()
    else:
        yield gpu.workloads[0] if len(gpu.workloads) == 1 else "", activity.busy


def _slowed(
    gpu: GpuFigures, holder: str, busy: Busy, held: Allocations, logs: Mapping[str, LoggedRun]
) -> list[SlowedGpu]:
    by_job: dict[str, list[tuple[int, float, float]]] = {}
    for start, end in busy.slowed:
        for piece in held.pieces(gpu.node, start, end, holder):
            by_job.setdefault(held.job_of(piece[0]), []).append(piece)
    rows = []
    for job, pieces in by_job.items():
        kept = [piece for piece in pieces if not held.is_lost(piece[0])]
        inside, outside = _steps(logs.get(job), [(start, end) for _, start, end in kept])
        rows.append(
            SlowedGpu(
                node=gpu.node,
                gpu=gpu.gpu or gpu.uuid,
                job=job,
                job_gpus=float(held.columns.jobs.gpus[pieces[0][0]]),
                runs=any(held.runs(attempt) for attempt, _, _ in pieces),
                seconds=sum(end - start for _, start, end in kept),
                all_seconds=sum(end - start for start, end in busy.slowed),
                step_seconds=inside,
                usual_step_seconds=outside,
            )
        )
    return rows


def _steps(
    log: LoggedRun | None, times: Sequence[tuple[float, float]]
) -> tuple[float | None, float | None]:
    """Median step of a log within these times, and at others."""
    if log is None:
        return None, None
    points = [point for point in log.series if point.at is not None and point.seconds]
    inside, outside = [], []
    for point in points:
        assert point.at is not None and point.seconds is not None
        begin = point.at - point.steps * point.seconds
        if any(start <= begin and point.at <= end for start, end in times):
            inside.append(point.seconds)
        elif not any(start < point.at and begin < end for start, end in times):
            outside.append(point.seconds)
    if min(len(inside), len(outside)) < _FEW:
        return None, None
    return statistics.median(inside), statistics.median(outside)
