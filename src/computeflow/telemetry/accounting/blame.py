"""Which failed jobs followed a fault on one of their nodes: `blame`.

A job that failed is laid to the first fault on one of its nodes in the `within` seconds before its
end, while it ran: later ones tend to follow from the first. Each job is laid to one fault at most.
That is no proof. `by_chance` is how many would be laid to a fault had the same faults come at random
moments of the jobs: with n of them in a run of d seconds, 1 - (1 - within/d)^n.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from computeflow.telemetry.accounting.jobs import Job
from computeflow.telemetry.accounting.nodes import node_names, short_name
from computeflow.telemetry.observed import Happening

_WITHIN = 900.0
"""Seconds: PyTorch's ten minutes for a collective (`init_process_group`, NCCL) and five to tear down;
Slurm gives a silent node up after `SlurmdTimeout`, five minutes by default (slurm.conf(5))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blamed:
    """A failed job and the fault it is laid to."""

    job: str
    user: str
    team: str
    state: str
    node: str
    what: str
    gpu: str
    fault_seconds: float
    between_seconds: float
    """From the fault to the end of the job."""
    gpu_seconds: float
    """All the attempt had."""
    waiting_gpu_seconds: float
    """From the fault to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBlamed:
    node: str
    jobs: int
    gpu_seconds: float
    waiting_gpu_seconds: float
    what: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    jobs: tuple[Blamed, ...]
    """Most GPU-seconds first."""
    nodes: tuple[NodeBlamed, ...]
    failed: int
    """Failed jobs whose nodes and times are known."""
    by_chance: float
    unplaced: int
    """Faults without a node or a time: they cannot be joined."""


_Faults = dict[str, list[tuple[float, Happening]]]


def blame(
    jobs: Iterable[Job], happenings: Iterable[Happening], *, within: float = _WITHIN
) -> Blame:
    """Happenings that name a job themselves are its end, not its cause, and are not taken."""
    faults, unplaced = _by_place(one for one in happenings if one.fault and not one.job)
    found, failed, chance = [], 0, 0.0
    for job in jobs:
        if job.outcome != "failed" or job.start is None or job.end is None or not job.nodes:
            continue
        failed += 1
        during = _during(job, faults)
        length = max(job.end - job.start, 1.0)
        chance += 1.0 - (1.0 - min(within / length, 1.0)) ** len(during)
        late = [pair for pair in during if pair[0] >= job.end - within]
        if late:
            found.append(_blamed(job, min(late, key=_when)[1]))
    found.sort(key=lambda one: (-one.gpu_seconds, one.job))
    return Blame(
        jobs=tuple(found),
        nodes=_by_node(found),
        failed=failed,
        by_chance=chance,
        unplaced=unplaced,
    )


def _by_place(happenings: Iterable[Happening]) -> tuple[_Faults, int]:
    """By node, in order of time; and how many have no node or no time."""
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


def _when(pair: tuple[float, Happening]) -> float:
    return pair[0]


def _during(job: Job, faults: _Faults) -> list[tuple[float, Happening]]:
    """Faults on the job's nodes while it ran."""
    assert job.start is not None and job.end is not None
    found = []
    for node in node_names(job.nodes):
        events = faults.get(node, [])
        low = bisect.bisect_left(events, job.start, key=_when)
        high = bisect.bisect_right(events, job.end, key=_when)
        found += events[low:high]
    return found


def _blamed(job: Job, fault: Happening) -> Blamed:
    assert job.end is not None and fault.seconds is not None
    between = job.end - fault.seconds
    return Blamed(
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


def _by_node(found: Sequence[Blamed]) -> tuple[NodeBlamed, ...]:
    nodes: dict[str, list[Blamed]] = {}
    for one in found:
        nodes.setdefault(one.node, []).append(one)
    rows = [
        NodeBlamed(
            node=node,
            jobs=len(ones),
            gpu_seconds=math.fsum(one.gpu_seconds for one in ones),
            waiting_gpu_seconds=math.fsum(one.waiting_gpu_seconds for one in ones),
            what=tuple(dict.fromkeys(one.what for one in ones)),
        )
        for node, ones in nodes.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.gpu_seconds, row.node)))
