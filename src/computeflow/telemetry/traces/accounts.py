"""One rank's time, cut into accounts: every instant of the window belongs to one (docs/audit.md).

Priority: compute, then exposed copies, then exposed communication, then idle by its cause. The work of
the device is put into a role by where on the host it was launched; idle time is explained by what the
host did meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.intervals import EMPTY, Intervals, between, union
from computeflow.telemetry.traces.groups import group_accounts
from computeflow.telemetry.traces.launches import Launches
from computeflow.telemetry.traces.names import Call, Mark, Work
from computeflow.telemetry.traces.trace import Ints, Trace, distinct

_QUEUED_NS = 10_000
"""Between two kernels that were both launched in time: the device's own latency takes a few
microseconds; more than this, and something else held it up."""

ASIDE = {"checkpoint": Mark.CHECKPOINT, "evaluation": Mark.EVALUATION}
AHEAD = 5
"""Launches that wait on the device when the host has recovered from an empty queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """A row for each row of `Trace.device`; what is launched nowhere known is forward or backward."""

    optimizer: NDArray[np.bool_]
    backward: NDArray[np.bool_]
    recompute: NDArray[np.bool_]
    """Of the backward pass, what computes activations again."""
    aside: dict[str, NDArray[np.bool_]]
    """What saving and evaluating launch, by account: none of it is the step's."""

    @property
    def step(self) -> NDArray[np.bool_]:
        """Neither saving nor evaluating."""
        return np.asarray(~np.logical_or.reduce(list(self.aside.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Disjoint sets of time that fill the window, by account; idle parts by cause in `host`."""

    window: Intervals
    accounts: dict[str, Intervals]
    host: dict[str, Intervals]
    """Of the account `host`: launch, sync, allocator, gc, queued."""
    exposed: dict[str, Intervals]
    """Of each communication account, the same as in `accounts`."""


def roles(trace: Trace, made: Launches) -> Roles:
    optimizer = np.zeros(len(trace.device), bool)
    backward, recompute = optimizer.copy(), optimizer.copy()
    aside = {name: optimizer.copy() for name in ASIDE}
    for thread in distinct(made.thread):
        rows = made.thread == thread
        again = recomputed(trace, int(thread))
        running = marked(trace, Mark.BACKWARD, int(thread))
        stepping = marked(trace, Mark.OPTIMIZER, int(thread))
        optimizer[rows] = stepping.contains(made.start[rows])
        backward[rows] = running.contains(made.start[rows])
        recompute[rows] = again.contains(made.start[rows])
        for name, mark in ASIDE.items():
            aside[name][rows] = marked(trace, mark, int(thread)).contains(made.start[rows])
    return Roles(
        optimizer=optimizer, backward=backward, recompute=recompute & ~optimizer, aside=aside
    )


def recomputed(trace: Trace, thread: int) -> Intervals:
    """Operators that autograd recorded while it ran backward: activations computed again."""
    backward = marked(trace, Mark.BACKWARD, thread)
    if not len(backward):
        return EMPTY
    marks = trace.marks
    rows = (marks.mark == Mark.FORWARD_OP) & (marks.thread == thread)
    rows[rows] = backward.contains(marks.start[rows])
    return union(marks.start[rows], marks.end[rows])


def marked(trace: Trace, mark: Mark, thread: int | None = None) -> Intervals:
    marks = trace.marks
    rows = marks.mark == mark
    if thread is not None:
        rows = rows & (marks.thread == thread)
    return union(marks.start[rows], marks.end[rows])


def cut(trace: Trace, made: Launches, role: Roles, start: int, end: int) -> Cut:
    """The window from `start` to `end`."""
    device = trace.device
    window = between(start, end)
    own = role.step
    busy = ((device.work == Work.COMPUTE) | (device.work == Work.MEMORY)) & own

    def of(rows: NDArray[np.bool_]) -> Intervals:
        return union(device.start[rows], device.end[rows]).clipped(start, end)

    compute = of(busy & ~role.optimizer & ~role.recompute)
    taken = compute
    accounts = {"compute": compute}
    for name, rows in (
        ("compute.recompute", busy & role.recompute),
        ("optimizer", busy & role.optimizer),
        ("copy", (device.work == Work.COPY) & own),
    ):
        accounts[name] = of(rows).minus(taken)
        taken = taken.either(accounts[name])
    exposed: dict[str, Intervals] = {}
    for name, rows in group_accounts(trace, role.backward).items():
        exposed[name] = of(rows & own).minus(taken)
        taken = taken.either(exposed[name])
    for name, rows in role.aside.items():
        accounts[name] = of(rows).minus(taken)
        taken = taken.either(accounts[name])
    causes, host = _idle(trace, made, window.minus(taken))
    for name, some in causes.items():
        accounts[name] = accounts[name].either(some) if name in accounts else some
    return Cut(window=window, accounts=accounts | exposed, host=host, exposed=exposed)


def _idle(
    trace: Trace, made: Launches, idle: Intervals
) -> tuple[dict[str, Intervals], dict[str, Intervals]]:
    """Idle time by account, and the host's part of it by cause."""
    accounts: dict[str, Intervals] = {}
    causes = {name: marked(trace, mark) for name, mark in (*ASIDE.items(), ("input", Mark.INPUT))}
    causes["copy"] = _calling(trace, Call.COPY)  # a copy that blocks the host until it is made
    for name, some in causes.items():
        accounts[name] = idle.both(some)
        idle = idle.minus(accounts[name])
    late, queued, synced = _gaps(trace, made, idle) if trace.launched else (EMPTY, EMPTY, EMPTY)
    host = {"gc": late.both(marked(trace, Mark.COLLECT))}
    rest = late.minus(host["gc"])
    host["allocator"] = rest.both(_calling(trace, Call.ALLOCATE))
    rest = rest.minus(host["allocator"])
    host["sync"] = rest.both(synced)
    host["launch"] = rest.minus(synced)
    host["queued"] = queued
    accounts["host"] = late.either(queued)
    accounts["unexplained"] = idle.minus(accounts["host"])
    return accounts, host


def _calling(trace: Trace, call: Call) -> Intervals:
    rows = trace.calls.call == call
    return union(trace.calls.start[rows], trace.calls.end[rows])


def _gaps(trace: Trace, made: Launches, idle: Intervals) -> tuple[Intervals, Intervals, Intervals]:
    """Gaps before work that the host launched late; short ones before work that was waiting; and of
    the late ones, those in which the host came back from waiting for the device.

    What runs next decides. Where that is not recorded (the end of a trace), the host was late if it
    launched nothing meanwhile.
    """
    device = trace.device
    if not len(idle) or not len(device):
        return idle, EMPTY, EMPTY
    full = np.where(queue_depth(trace, made) >= AHEAD, device.start, -(2**62))
    np.maximum.accumulate(full, out=full)
    following = np.searchsorted(device.start, idle.end, side="left")
    there = following < len(device)
    launch = np.where(there, made.start[np.minimum(following, len(device) - 1)], idle.end)
    known = launch > np.iinfo(np.int64).min // 8
    late = known & (launch >= idle.start)
    queued = known & ~late & (idle.end - idle.start <= _QUEUED_NS)
    ends = np.sort(trace.calls.end[trace.calls.call == Call.SYNC])
    # since the host was last well ahead, it came back from waiting for the device to be done
    first = np.searchsorted(ends, full[np.maximum(following - 1, 0)], side="left")
    last = np.searchsorted(ends, np.maximum(launch, idle.start), side="right")
    synced = late & (last > first)
    return _some(idle, late), _some(idle, queued), _some(idle, synced)


def queue_depth(trace: Trace, made: Launches) -> Ints:
    """For each row of the device: how many others had been launched and not begun when it was."""
    before = np.searchsorted(np.sort(made.start), made.start, side="left")
    return np.asarray(before - np.searchsorted(trace.device.start, made.start, side="right"))


def _some(intervals: Intervals, rows: NDArray[np.bool_]) -> Intervals:
    return Intervals(intervals.start[rows], intervals.end[rows])


def seconds_by_step(parts: dict[str, Intervals], edges: Ints) -> dict[str, NDArray[np.float64]]:
    """Of each account in each step; `edges` are the steps' bounds on the device."""
    return {name: np.diff(some.before(edges)) / 1e9 for name, some in parts.items()}
