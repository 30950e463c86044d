"""Traces without a device: the host computes, and its operators stand for kernels."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.telemetry.intervals import union
from computeflow.telemetry.traces.event_names import MAX_READ, Mark, WorkKind
from computeflow.telemetry.traces.host_transfers import find_blocked, find_transfers
from computeflow.telemetry.traces.launches import Launches, launches
from computeflow.telemetry.traces.rank_accounts import intervals_of_mark
from computeflow.telemetry.traces.trace import DeviceWork, Marks, Trace, distinct

Rows = NDArray[np.bool_]
_WRAPPER = re.compile(r"^(torch::)?autograd::|^CompiledFunction|^Optimizer\.|^FSDP::")


def with_launches(trace: Trace) -> tuple[Trace, Launches]:
    """The trace, with the host's operators as device work where it has no device, and its launches."""
    if not trace.on_device and not len(trace.operators):
        raise InputError(
            f"{trace.path}: no kernels and no operators in its {trace.events:,} events: nothing ran"
        )
    if trace.on_device:
        return trace, launches(trace)
    trace, launched = _host_as_device(trace)
    if not len(trace.device):
        raise InputError(f"{trace.path}: its operators only submit collectives")
    return trace, launched


def _host_as_device(trace: Trace) -> tuple[Trace, Launches]:
    """The same trace with outermost operators and the host's own transfers as its device's work."""
    operators = trace.operators
    waits = set(trace.marks.name[trace.marks.mark == Mark.COLLECTIVE].tolist())
    wraps = {code for code, name in enumerate(trace.names) if _wraps(name)}
    computes = ~np.isin(operators.name, np.array(sorted(waits | wraps), np.int32))
    computes &= ~_loads(trace) & ~_submits(trace)
    outer = _outermost(operators, computes)
    transfers = find_transfers(trace)
    busy = union(operators.start[outer], operators.end[outer])
    blocked = find_blocked(trace, busy, transfers)
    moved, ran = transfers.rows, int(outer.sum())
    start, end, name, thread = (
        np.concatenate([getattr(operators, column)[outer], getattr(moved, column)])
        for column in ("start", "end", "name", "thread")
    )
    work = np.repeat([WorkKind.COMPUTE, WorkKind.COMM], [ran, len(moved)])
    number = np.concatenate([np.full(ran, -1), np.arange(len(moved))])
    launch = np.concatenate([start[:ran], transfers.submitted])
    launcher = np.concatenate([thread[:ran], transfers.submitter])
    order = np.argsort(start, kind="stable")
    unknown = np.full(len(order), -1, np.int64)
    device = DeviceWork(
        start=start[order],
        end=end[order],
        name=name[order].astype(np.int32),
        stream=thread[order].astype(np.int32),
        correlation=number[order].astype(np.int64),
        work=work[order].astype(np.int8),
        bytes=unknown,
    )
    launched = Launches(call=unknown, start=launch[order], thread=launcher[order].astype(np.int32))
    return (
        replace(trace, device=device, collectives=transfers.described, blocked=blocked),
        launched,
    )


def _submits(trace: Trace) -> Rows:
    """Operators inside of which a collective is submitted, or waited for."""
    operators, marks = trace.operators, trace.marks
    found = np.zeros(len(operators.start), bool)
    for thread in distinct(operators.thread):
        rows = operators.thread == thread
        handed = marks.start[(marks.mark == Mark.COLLECTIVE) & (marks.thread == thread)]
        first = np.searchsorted(handed, operators.start[rows])
        found[rows] = np.searchsorted(handed, operators.end[rows]) > first
    return found


def _loads(trace: Trace) -> Rows:
    """Operators inside the data loader's annotation: reading and decoding is not work of the step."""
    operators = trace.operators
    loading = np.zeros(len(operators.start), bool)
    for thread in distinct(operators.thread):
        rows = operators.thread == thread
        loading[rows] = intervals_of_mark(trace, Mark.INPUT, int(thread)).contains(
            operators.start[rows]
        )
    return loading


def _wraps(name: str) -> bool:
    """Whether a name is one of autograd's hooks, which may contain waits for collectives."""
    return _WRAPPER.search(name[:MAX_READ]) is not None


def _outermost(operators: Marks, computes: Rows) -> Rows:
    """Computing operators that do not run inside another one on their thread."""
    outer = computes.copy()
    for thread in distinct(operators.thread):
        rows = np.flatnonzero(computes & (operators.thread == thread))
        reach = np.maximum.accumulate(operators.end[rows])
        outer[rows] = np.concatenate([[True], operators.start[rows][1:] >= reach[:-1]])
    return outer
