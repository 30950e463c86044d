"""Failed jobs that followed a fault on one of their nodes: `attribute_faults`.

A failed job is attributed to the first fault on one of its nodes in the `within` seconds before its
end, while it ran: later faults tend to follow from the first. Each job is attributed to one fault at
most. That is no proof. `by_chance` is how many jobs would be attributed had the same faults come at
random times in the jobs: with n of them in a run of d seconds, 1 - (1 - within/d)^n.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from computeflow.telemetry.accounting.attempts_by_node import node_names, short_name
from computeflow.telemetry.accounting.jobs import JobAttempt
from computeflow.telemetry.source_reports import Event

_WITHIN = 900.0
"""Seconds: PyTorch's ten minutes for a collective (`init_process_group`, NCCL) and five to tear down;
Slurm gives a silent node up after `SlurmdTimeout`, five minutes by default (slurm.conf(5))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributedJob:
    """A failed job and the fault it is attributed to."""

    job: str
    user: str
    team: str
    state: str
    node: str
    what: str
    gpu: str
    fault_seconds: float
    between_seconds: float
    """Seconds from the fault to the end of the job."""
    gpu_seconds: float
    """GPU-seconds of the whole attempt."""
    waiting_gpu_seconds: float
    """GPU-seconds from the fault to the end of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributedNode:
    node: str
    jobs: int
    gpu_seconds: float
    waiting_gpu_seconds: float
    what: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultAttribution:
    jobs: tuple[AttributedJob, ...]
    """Attributed jobs, most GPU-seconds first."""
    nodes: tuple[AttributedNode, ...]
    failed: int
    """Failed jobs whose nodes and times are known."""
    by_chance: float
    unplaced: int
    """Faults without a node or a time, which cannot be joined with jobs."""


_Faults = dict[str, list[tuple[float, Event]]]


def attribute_faults(
    jobs: Iterable[JobAttempt], happenings: Iterable[Event], *, within: float = _WITHIN
) -> FaultAttribution:
    """Attribute failed jobs to faults; an event that names a job is its end, not its cause."""
    faults, unplaced = _by_node_and_time(
        event for event in happenings if event.fault and not event.job
    )
    attributed, failed, by_chance = [], 0, 0.0
    for job in jobs:
        if job.outcome != "failed" or job.start is None or job.end is None or not job.nodes:
            continue
        failed += 1
        during = _during(job, faults)
        length = max(job.end - job.start, 1.0)
        by_chance += 1.0 - (1.0 - min(within / length, 1.0)) ** len(during)
        late = [pair for pair in during if pair[0] >= job.end - within]
        if late:
            attributed.append(_attribute(job, min(late, key=_when)[1]))
    attributed.sort(key=lambda job: (-job.gpu_seconds, job.job))
    return FaultAttribution(
        jobs=tuple(attributed),
        nodes=_by_node(attributed),
        failed=failed,
        by_chance=by_chance,
        unplaced=unplaced,
    )


def _by_node_and_time(happenings: Iterable[Event]) -> tuple[_Faults, int]:
    """Faults by node, in order of time; and how many have no node or no time."""
    faults: _Faults = {}
    unplaced = 0
    for event in happenings:
        if event.seconds is None or not event.node:
            unplaced += 1
        else:
            faults.setdefault(short_name(event.node), []).append((event.seconds, event))
    for events in faults.values():
        events.sort(key=_when)
    return faults, unplaced


def _when(pair: tuple[float, Event]) -> float:
    return pair[0]


def _during(job: JobAttempt, faults: _Faults) -> list[tuple[float, Event]]:
    """Faults on the job's nodes while it ran."""
    assert job.start is not None and job.end is not None
    during = []
    for node in node_names(job.nodes):
        events = faults.get(node, [])
        low = bisect.bisect_left(events, job.start, key=_when)
        high = bisect.bisect_right(events, job.end, key=_when)
        during += events[low:high]
    return during


def _attribute(job: JobAttempt, fault: Event) -> AttributedJob:
    assert job.end is not None and fault.seconds is not None
    between = job.end - fault.seconds
    return AttributedJob(
        job=job.job,
        user=job.user,
        team=job.team,
        state=job.state,
        node=short_name(fault.node),
        what=fault.what,
        gpu=fault.gpu,
        fault_seconds=fault.seconds,
        between_seconds=between,
        gpu_seconds=job.gpu_seconds,
        waiting_gpu_seconds=job.gpus * between,
    )


def _by_node(attributed: Sequence[AttributedJob]) -> tuple[AttributedNode, ...]:
    nodes: dict[str, list[AttributedJob]] = {}
    for job in attributed:
        nodes.setdefault(job.node, []).append(job)
    rows = [
        AttributedNode(
            node=node,
            jobs=len(jobs),
            gpu_seconds=math.fsum(job.gpu_seconds for job in jobs),
            waiting_gpu_seconds=math.fsum(job.waiting_gpu_seconds for job in jobs),
            what=tuple(dict.fromkeys(job.what for job in jobs)),
        )
        for node, jobs in nodes.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.gpu_seconds, row.node)))
