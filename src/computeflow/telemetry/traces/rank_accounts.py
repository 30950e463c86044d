"""One rank's time, split into accounts: every instant of the window belongs to one (docs/audit.md).

Priority: compute, then exposed copies, then exposed communication, then idle by its cause. Where
the host launched the device's work decides its role; what the host did meanwhile explains idle
time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.intervals import EMPTY, Intervals, between, union
from computeflow.telemetry.traces.event_names import ALLOCATOR, Call, Mark, WorkKind
from computeflow.telemetry.traces.launches import Launches
from computeflow.telemetry.traces.process_groups import group_accounts
from computeflow.telemetry.traces.trace import Ints, Trace, distinct

_QUEUED_NS = 10_000
"""Longest gap between two kernels that were both launched in time. The device's own latency takes a
few microseconds; beyond this, something else held it up."""

ASIDE = {"checkpoint": Mark.CHECKPOINT, "evaluation": Mark.EVALUATION}
_DERIVATIVE = "_backward"
"""Ending of the operators of torch that compute derivatives alone."""
AHEAD = 5
"""Launches queued on the device when the host has recovered from an empty queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The role of each row of `Trace.device`; a row with no known launch is forward or backward."""

    optimizer: NDArray[np.bool_]
    backward: NDArray[np.bool_]
    recompute: NDArray[np.bool_]
    """Rows of the backward pass that compute activations again."""
    aside: dict[str, NDArray[np.bool_]]
    """Work of checkpoints and evaluation, by account: not part of the step."""

    @property
    def step(self) -> NDArray[np.bool_]:
        """Rows that belong neither to a checkpoint nor to an evaluation."""
        return np.asarray(~np.logical_or.reduce(list(self.aside.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAccounts:
    """Disjoint intervals that fill the window, by account; `host` splits idle time by cause."""

    window: Intervals
    accounts: dict[str, Intervals]
    host: dict[str, Intervals]
    """The account `host` by cause: launch, sync, allocator, gc, queued."""
    exposed: dict[str, Intervals]
    """The communication accounts, as in `accounts`."""


def roles(trace: Trace, launches: Launches) -> Roles:
    optimizer = np.zeros(len(trace.device), bool)
    backward, recompute = optimizer.copy(), optimizer.copy()
    aside = {name: optimizer.copy() for name in ASIDE}
    for thread in distinct(launches.thread):
        rows = launches.thread == thread
        again = find_recomputation(trace, int(thread))
        running = intervals_of_mark(trace, Mark.BACKWARD, int(thread))
        stepping = find_optimizer_steps(trace, int(thread))
        optimizer[rows] = stepping.contains(launches.start[rows])
        backward[rows] = running.contains(launches.start[rows])
        recompute[rows] = again.contains(launches.start[rows])
        for name, mark in ASIDE.items():
            aside[name][rows] = intervals_of_mark(trace, mark, int(thread)).contains(
                launches.start[rows]
            )
    return Roles(
        optimizer=optimizer, backward=backward, recompute=recompute & ~optimizer, aside=aside
    )


def find_recomputation(trace: Trace, thread: int) -> Intervals:
    """Operators that autograd recorded while it ran backward: activations computed again.

    None where it recorded derivatives, too: then gradients can be differentiated in turn (torch.func,
    create_graph), and all of the backward pass is recorded.
    """
    backward = intervals_of_mark(trace, Mark.BACKWARD, thread)
    if not len(backward):
        return EMPTY
    marks = trace.marks
    rows = (marks.mark == Mark.FORWARD_OP) & (marks.thread == thread)
    rows[rows] = backward.contains(marks.start[rows])
    if any(trace.names[name].endswith(_DERIVATIVE) for name in distinct(marks.name[rows])):
        return EMPTY
    return union(marks.start[rows], marks.end[rows])


def find_optimizer_steps(trace: Trace, thread: int) -> Intervals:
    """Host time of the optimizer, without the passes that a closure runs inside of its step: there
    the step itself begins when the last backward pass has ended (Lightning).
    """
    steps = intervals_of_mark(trace, Mark.OPTIMIZER, thread)
    rows = trace.marks.mark == Mark.BACKWARD
    start, reach = trace.marks.start[rows], np.maximum.accumulate(trace.marks.end[rows])
    first, last = np.searchsorted(start, steps.start), np.searchsorted(start, steps.end)
    closed = np.flatnonzero(last > first)
    begin = steps.start.copy()
    begin[closed] = np.maximum(begin[closed], reach[last[closed] - 1])
    return union(begin, steps.end)


def intervals_of_mark(trace: Trace, mark: Mark, thread: int | None = None) -> Intervals:
    """The host time with this meaning, on one thread or on all."""
    marks = trace.marks
    rows = marks.mark == mark
    if thread is not None:
        rows = rows & (marks.thread == thread)
    return union(marks.start[rows], marks.end[rows])


def cut(trace: Trace, launches: Launches, role: Roles, start: int, end: int) -> WindowAccounts:
    """Split the window from `start` to `end` into accounts."""
    device = trace.device
    window = between(start, end)
    own = role.step
    busy = ((device.work == WorkKind.COMPUTE) | (device.work == WorkKind.MEMORY)) & own

    def ran(rows: NDArray[np.bool_]) -> Intervals:
        return union(device.start[rows], device.end[rows]).clipped(start, end)

    compute = ran(busy & ~role.optimizer & ~role.recompute)
    taken = compute
    accounts = {"compute": compute}
    for name, rows in (
        ("compute.recompute", busy & role.recompute),
        ("optimizer", busy & role.optimizer),
        ("copy", (device.work == WorkKind.COPY) & own),
    ):
        accounts[name] = ran(rows).minus(taken)
        taken = taken.either(accounts[name])
    exposed: dict[str, Intervals] = {}
    for name, rows in group_accounts(trace, role.backward).items():
        exposed[name] = ran(rows & own).minus(taken)
        if trace.blocked is not None:
            exposed[name] = exposed[name].both(trace.blocked)
        taken = taken.either(exposed[name])
    for name, rows in role.aside.items():
        accounts[name] = ran(rows).minus(taken)
        taken = taken.either(accounts[name])
    causes, host = _idle(trace, launches, window.minus(taken))
    for name, intervals in causes.items():
        accounts[name] = accounts[name].either(intervals) if name in accounts else intervals
    return WindowAccounts(window=window, accounts=accounts | exposed, host=host, exposed=exposed)


def _idle(
    trace: Trace, launches: Launches, idle: Intervals
) -> tuple[dict[str, Intervals], dict[str, Intervals]]:
    """Idle time by account, and the host's part of it by cause."""
    accounts: dict[str, Intervals] = {}
    causes = {
        name: intervals_of_mark(trace, mark)
        for name, mark in (*ASIDE.items(), ("input", Mark.INPUT))
    }
    causes["copy"] = _calling(trace, Call.COPY)  # a copy that blocks the host until it is done
    for name, intervals in causes.items():
        accounts[name] = idle.both(intervals)
        idle = idle.minus(accounts[name])
    late, queued, synced = _gaps(trace, launches, idle) if trace.launched else (EMPTY, EMPTY, EMPTY)
    host = {"gc": late.both(intervals_of_mark(trace, Mark.COLLECT))}
    rest = late.minus(host["gc"])
    host["allocator"] = rest.both(_calling(trace, *ALLOCATOR))
    rest = rest.minus(host["allocator"])
    host["sync"] = rest.both(synced)
    host["launch"] = rest.minus(synced)
    host["queued"] = queued
    accounts["host"] = late.either(queued)
    accounts["unexplained"] = idle.minus(accounts["host"])
    return accounts, host


def _calling(trace: Trace, *calls: Call) -> Intervals:
    rows = np.isin(trace.calls.call, calls)
    return union(trace.calls.start[rows], trace.calls.end[rows])


def _gaps(
    trace: Trace, launches: Launches, idle: Intervals
) -> tuple[Intervals, Intervals, Intervals]:
    """Gaps before work that the host launched late; short gaps before work that was queued; and the
    late gaps in which the host had returned from waiting for the device.

    The work that runs next decides. Where it is not recorded (the end of a trace), the host was
    late if it launched nothing meanwhile.
    """
    device = trace.device
    if not len(idle) or not len(device):
        return idle, EMPTY, EMPTY
    full = np.where(queue_depth(trace, launches) >= AHEAD, device.start, -(2**62))
    np.maximum.accumulate(full, out=full)
    following = np.searchsorted(device.start, idle.end, side="left")
    there = following < len(device)
    launch = np.where(there, launches.start[np.minimum(following, len(device) - 1)], idle.end)
    known = launch > np.iinfo(np.int64).min // 8
    late = known & (launch >= idle.start)
    queued = known & ~late & (idle.end - idle.start <= _QUEUED_NS)
    ends = np.sort(trace.calls.end[trace.calls.call == Call.SYNC])
    # since the host was last well ahead, it returned from waiting for the device
    first = np.searchsorted(ends, full[np.maximum(following - 1, 0)], side="left")
    last = np.searchsorted(ends, np.maximum(launch, idle.start), side="right")
    synced = late & (last > first)
    return _selected(idle, late), _selected(idle, queued), _selected(idle, synced)


def queue_depth(trace: Trace, launches: Launches) -> Ints:
    """Length of the device's queue at the launch of each of its rows."""
    before = np.searchsorted(np.sort(launches.start), launches.start, side="left")
    return np.asarray(before - np.searchsorted(trace.device.start, launches.start, side="right"))


def _selected(intervals: Intervals, rows: NDArray[np.bool_]) -> Intervals:
    return Intervals(intervals.start[rows], intervals.end[rows])


def seconds_by_step(parts: dict[str, Intervals], edges: Ints) -> dict[str, NDArray[np.float64]]:
    """Seconds of each account in each step; `edges` are the steps' bounds on the device."""
    return {name: np.diff(intervals.before(edges)) / 1e9 for name, intervals in parts.items()}
