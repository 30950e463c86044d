"""A trace without a device: the host is what computes. Its operators stand for kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from computeflow.telemetry.kineto.launches import Launches
from computeflow.telemetry.kineto.names import Mark, Work
from computeflow.telemetry.kineto.trace import DeviceWork, Marks, Trace, distinct


def host_as_device(trace: Trace) -> tuple[Trace, Launches]:
    """The same trace with outermost operators and the host's own transfers as its device's work."""
    operators, marks = trace.operators, trace.marks
    handed = marks.mark == Mark.COLLECTIVE
    waits = set(marks.name[handed].tolist())
    outer = _outermost(operators)
    outer &= ~np.isin(operators.name, np.array(sorted(waits), np.int32))
    moved = marks.mark == Mark.TRANSFER
    start = np.concatenate([operators.start[outer], marks.start[moved]])
    order = np.argsort(start, kind="stable")

    def joined(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        both = np.concatenate([getattr(operators, name)[outer], getattr(marks, name)[moved]])
        return np.asarray(both[order])

    work = np.concatenate(
        [np.full(int(outer.sum()), Work.COMPUTE), np.full(int(moved.sum()), Work.COMM)]
    ).astype(np.int8)[order]
    thread = joined("thread").astype(np.int32)
    nothing = np.full(len(work), -1, np.int64)
    device = DeviceWork(
        start=joined("start"), end=joined("end"), name=joined("name").astype(np.int32),
        stream=thread, correlation=nothing, work=work, bytes=nothing,
    )  # fmt: skip
    made = Launches(call=nothing, start=device.start, thread=thread)
    return replace(trace, device=device), made


def _outermost(operators: Marks) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Those that run in no other one of their thread."""
    outer = np.ones(len(operators), bool)
    for thread in distinct(operators.thread):
        rows = np.flatnonzero(operators.thread == thread)
        reach = np.maximum.accumulate(operators.end[rows])
        outer[rows] = np.concatenate([[True], operators.start[rows][1:] >= reach[:-1]])
    return outer
