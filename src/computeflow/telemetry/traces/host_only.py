"""Traces without a device: the host computes, and its operators stand for kernels."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.telemetry.traces.event_names import MAX_READ, Mark, WorkKind
from computeflow.telemetry.traces.launches import Launches, launches
from computeflow.telemetry.traces.rank_accounts import intervals_of_mark
from computeflow.telemetry.traces.trace import DeviceWork, Marks, Trace, distinct

Rows = NDArray[np.bool_]
_WRAPPER = re.compile(r"^(torch::)?autograd::|Backward\d*$|^CompiledFunction|^Optimizer\.|^FSDP::")


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
    operators, marks = trace.operators, trace.marks
    handed = marks.mark == Mark.COLLECTIVE
    waits = set(marks.name[handed].tolist())
    wraps = {code for code, name in enumerate(trace.names) if _wraps(name)}
    computes = ~np.isin(operators.name, np.array(sorted(waits | wraps), np.int32))
    computes &= ~_loads(trace)
    outer = _outermost(operators, computes)
    moved = marks.mark == Mark.TRANSFER
    start = np.concatenate([operators.start[outer], marks.start[moved]])
    order = np.argsort(start, kind="stable")

    def joined(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        both = np.concatenate([getattr(operators, name)[outer], getattr(marks, name)[moved]])
        return np.asarray(both[order])

    work = np.concatenate(
        [np.full(int(outer.sum()), WorkKind.COMPUTE), np.full(int(moved.sum()), WorkKind.COMM)]
    ).astype(np.int8)[order]
    thread = joined("thread").astype(np.int32)
    unknown = np.full(len(work), -1, np.int64)
    device = DeviceWork(
        start=joined("start"),
        end=joined("end"),
        name=joined("name").astype(np.int32),
        stream=thread,
        correlation=unknown,
        work=work,
        bytes=unknown,
    )
    launched = Launches(call=unknown, start=device.start, thread=thread)
    return replace(trace, device=device), launched


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
    """Whether a name is one of autograd's nodes and hooks, which may contain waits for collectives."""
    return _WRAPPER.search(name[:MAX_READ]) is not None


def _outermost(operators: Marks, computes: Rows) -> Rows:
    """Computing operators that do not run inside another one on their thread."""
    outer = computes.copy()
    for thread in distinct(operators.thread):
        rows = np.flatnonzero(computes & (operators.thread == thread))
        reach = np.maximum.accumulate(operators.end[rows])
        outer[rows] = np.concatenate([[True], operators.start[rows][1:] >= reach[:-1]])
    return outer
