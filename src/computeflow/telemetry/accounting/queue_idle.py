"""GPUs that were allocated to nobody, split by whether jobs waited for them: `split_idle`.

A job waits from the moment it could have started (Slurm's Eligible; else its submission, or the end of
its last attempt) to its start. Jobs that started within `MIN_WAIT` count as served at once. At every
moment as many idle GPUs are wanted as waiting jobs ask for; the smallest of those jobs tells why they
are idle:

    spread       enough GPUs are free for it, but not enough on as many nodes as it asks for
    held         nodes that would do are free: a priority, a limit or a reservation holds it back
    short        fewer GPUs are free than it asks for: something larger than the gap waits
    unplaced     where the free GPUs are is unknown: the nodes are not listed

GPUs of nodes out of service are apart, from the end of the last job there or the time of the reason.
Neglected: partitions, features and memory that a job asks for; those show as held.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from computeflow.telemetry.accounting.attempts_by_node import ByNode, pairs_of, short_name
from computeflow.telemetry.accounting.jobs import Floats, Indices, JobAttempts
from computeflow.telemetry.accounting.slurm_text import NodeState

MIN_WAIT = 300.0
"""Seconds. Slurm's main scheduler looks every 60 s and backfill every 30 s by default
(`sched_interval`, `bf_interval`, slurm.conf(5)); prologs and epilogs take minutes."""
REASONS = ("spread", "held", "short", "unplaced")
_MAX_WAITING = 20
_SLACK = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """A job that waited while GPUs were idle."""

    job: str
    user: str
    name: str
    gpus: float
    nodes: int | None
    seconds: float
    waits: bool
    """Whether it still waited at the end of the period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueIdle:
    """Idle GPU-seconds of the period by cause; they sum to the idle time of the ledger."""

    wanted: dict[str, float]
    """By reason, where jobs waited: at most what they asked for."""
    out: float
    """On nodes out of service."""
    unwanted: float
    """With an empty queue, or beyond what waiting jobs asked for."""
    waited: int
    """Jobs that waited for `MIN_WAIT` or longer."""
    longest: tuple[WaitingJob, ...]
    """Those that asked for most GPUs for longest."""

    @property
    def wanted_gpu_seconds(self) -> float:
        return math.fsum(self.wanted.values())


def split_idle(
    jobs: JobAttempts,
    nodes: Sequence[NodeState],
    first: float,
    last: float,
    *,
    gpus: int,
    idle: float,
    placed: bool,
) -> QueueIdle:
    """`idle`: that of the ledger. `placed`: the listed nodes have all `gpus`."""
    pairs = pairs_of(jobs, jobs.gpus > 0) if placed else None
    waits = _waits(jobs, first, last)
    swept = _Sweep(jobs, waits, _Capacity(jobs, nodes, pairs, gpus, last))
    swept.run(first, last)
    wanted = {reason: swept.wanted[reason] for reason in REASONS if swept.wanted[reason] > 0}
    scale = min(1.0, idle / total) if (total := math.fsum(wanted.values()) + swept.out) else 1.0
    wanted = {reason: scale * seconds for reason, seconds in wanted.items()}
    out = scale * swept.out
    return QueueIdle(
        wanted=wanted,
        out=out,
        unwanted=max(idle - out - math.fsum(wanted.values()), 0.0),
        waited=len(waits.job),
        longest=_longest(jobs, waits, last, pairs),
    )


@dataclass(frozen=True, slots=True)
class _Waits:
    job: Indices
    """Attempts that waited."""
    begin: Floats
    end: Floats


def _waits(jobs: JobAttempts, first: float, last: float) -> _Waits:
    """Waits within the period, of jobs that waited for `MIN_WAIT` in all."""
    known = not np.isnan(jobs.eligible).all()
    begin = np.fmax(jobs.eligible if known else jobs.submit, _ended_before(jobs))
    end = np.where(np.isnan(jobs.start), jobs.end, jobs.start)
    end = np.where(np.isnan(end) & jobs.having("waiting"), last, end)
    which = (jobs.gpus > 0) & (end - begin >= MIN_WAIT)  # NaN is not
    which &= (np.minimum(end, last) > np.maximum(begin, first)) & ~jobs.having("unknown")
    index = np.flatnonzero(which)
    return _Waits(index, np.maximum(begin[index], first), np.minimum(end[index], last))


def _ended_before(jobs: JobAttempts) -> Floats:
    """End of the attempt before, of the same job; NaN for the first."""
    before = np.full(len(jobs), math.nan)
    order = np.lexsort((np.nan_to_num(jobs.start, nan=math.inf), jobs.job_of))
    same = jobs.job_of[order][1:] == jobs.job_of[order][:-1]
    before[order[1:][same]] = jobs.end[order[:-1][same]]
    return before


def _longest(
    jobs: JobAttempts, waits: _Waits, last: float, pairs: ByNode | None
) -> tuple[WaitingJob, ...]:
    seconds = waits.end - waits.begin
    order = np.argsort(-seconds * jobs.gpus[waits.job], kind="stable")[:_MAX_WAITING]
    rows = []
    for index in order:
        attempt = int(waits.job[index])
        row = jobs.row(attempt)
        count = 0 if pairs is None else int((pairs.attempt == attempt).sum())
        rows.append(
            WaitingJob(
                job=row.job,
                user=row.user,
                name=row.name,
                gpus=row.gpus,
                nodes=count or None,
                seconds=float(seconds[index]),
                waits=bool(waits.end[index] >= last),
            )
        )
    return tuple(rows)


class _Capacity:
    """Free GPUs, on each node where the nodes are known."""

    def __init__(
        self,
        jobs: JobAttempts,
        nodes: Sequence[NodeState],
        pairs: ByNode | None,
        gpus: int,
        last: float,
    ) -> None:
        self.jobs = jobs
        self.nodes_of: dict[int, Indices] = {}
        self.placed = pairs is not None
        self.free = np.array([float(gpus)])
        self.node_gpus = max((node.gpus for node in nodes), default=1.0) or 1.0
        self.out_from: list[tuple[float, int]] = []
        if pairs is None:
            return
        listed = {short_name(node.name): node for node in nodes}
        names = [*listed, *(name for name in pairs.names if name not in listed)]
        place = {name: index for index, name in enumerate(names)}
        self.free = np.array([listed[n].gpus if n in listed else 0.0 for n in names] or [0.0])
        at = np.array([place[name] for name in pairs.names] or [0], np.int64)[pairs.node]
        order = np.argsort(pairs.attempt, kind="stable")
        attempts, begins = np.unique(pairs.attempt[order], return_index=True)
        for attempt, part in zip(attempts, np.split(at[order], begins[1:]), strict=True):
            self.nodes_of[int(attempt)] = part
        self._take_out(listed, place, pairs, at, last)

    def _take_out(
        self,
        listed: dict[str, NodeState],
        place: dict[str, int],
        pairs: ByNode,
        at: Indices,
        last: float,
    ) -> None:
        ended = np.full(len(place), -math.inf)
        ends = np.nan_to_num(self.jobs.end[pairs.attempt], nan=last)
        np.maximum.at(ended, at, ends)
        self.out_from = [
            (max(node.since, float(ended[place[name]])), place[name])
            for name, node in listed.items()
            if node.out and node.since is not None
        ]

    def shift(self, attempt: int, sign: float) -> None:
        gpus = float(self.jobs.gpus[attempt])
        if not self.placed:
            self.free[0] += sign * gpus
        elif (nodes := self.nodes_of.get(attempt)) is not None:
            self.free[nodes] += sign * gpus / len(nodes)

    def fits(self, attempt: int) -> bool:
        """Whether enough nodes have as many free GPUs as the attempt has on each of its own."""
        nodes = self.nodes_of.get(attempt)
        gpus = float(self.jobs.gpus[attempt])
        count = math.ceil(gpus / self.node_gpus) if nodes is None else len(nodes)
        return bool((self.free >= gpus / count - _SLACK).sum() >= count)


@dataclass(slots=True)
class _Sweep:
    """Goes through starts, ends and waits in order of time."""

    jobs: JobAttempts
    waits: _Waits
    capacity: _Capacity
    wanted: dict[str, float] = field(default_factory=lambda: dict.fromkeys(REASONS, 0.0))
    out: float = 0.0
    _queue: list[tuple[float, int]] = field(default_factory=list)
    _left: set[int] = field(default_factory=set)
    _demand: float = 0.0
    _taken_out: float = 0.0

    def run(self, first: float, last: float) -> None:
        events = self._events(first, last)
        now = first
        for time, kind, index in events:
            if time > now:
                self._pass(time - now)
                now = time
            self._apply(kind, index)
        self._pass(last - now)

    def _events(self, first: float, last: float) -> list[tuple[float, int, int]]:
        """Time, kind (0 end, 1 out of service, 2 start, 3 end of a wait, 4 wait), and whose."""
        jobs = self.jobs
        ran = np.flatnonzero((jobs.gpus > 0) & (jobs.start < last))
        events = []
        for index in ran:
            end = jobs.end[index]
            if end <= first or end <= jobs.start[index]:
                continue
            events.append((max(float(jobs.start[index]), first), 2, int(index)))
            if end < last:
                events.append((float(end), 0, int(index)))
        for row, (begin, end) in enumerate(zip(self.waits.begin, self.waits.end, strict=True)):
            events += [(float(begin), 4, row), (float(end), 3, row)]
        events += [(max(since, first), 1, node) for since, node in self.capacity.out_from]
        return sorted(event for event in events if event[0] <= last)

    def _apply(self, kind: int, index: int) -> None:
        if kind == 0:
            self.capacity.shift(index, +1.0)
        elif kind == 1:
            self._taken_out += float(self.capacity.free[index])
            self.capacity.free[index] = 0.0
        elif kind == 2:
            self.capacity.shift(index, -1.0)
        else:
            gpus = float(self.jobs.gpus[self.waits.job[index]])
            self._demand += gpus if kind == 4 else -gpus
            if kind == 4:
                heapq.heappush(self._queue, (gpus, index))
            else:
                self._left.add(index)

    def _pass(self, seconds: float) -> None:
        self.out += seconds * self._taken_out
        while self._queue and self._queue[0][1] in self._left:
            heapq.heappop(self._queue)
        if not self._queue:
            return
        free = float(np.maximum(self.capacity.free, 0.0).sum())
        if free > _SLACK:
            wanted = min(free, max(self._demand, 0.0))
            self.wanted[self._reason(free)] += seconds * wanted

    def _reason(self, free: float) -> str:
        gpus, row = self._queue[0]
        if free < gpus - _SLACK:
            return "short"
        if not self.capacity.placed:
            return "unplaced"
        return "held" if self.capacity.fits(int(self.waits.job[row])) else "spread"
