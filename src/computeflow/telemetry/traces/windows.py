"""The part of a trace that is analysed: its steps, and their bounds on the device."""

from __future__ import annotations

import math

import numpy as np

from computeflow.errors import InputError
from computeflow.telemetry.traces.launches import Launches, boundaries
from computeflow.telemetry.traces.rank_measurements import TraceOptions
from computeflow.telemetry.traces.trace import Ints, Trace, TraceStep


def find_window(
    trace: Trace, launches: Launches, options: TraceOptions
) -> tuple[tuple[TraceStep, ...], Ints, tuple[str, ...]]:
    """The requested steps, their bounds on the device, and notes."""
    steps, notes = _chosen(trace, options)
    if options.window == "whole" or not steps:
        edges = np.array([trace.device.start[0], trace.device.end.max()], np.int64)
        if edges[1] <= edges[0]:
            raise InputError(f"{trace.path}: its work takes no time")
        note = () if options.window == "whole" else ("no steps are marked: the whole recording",)
        return (), edges, note
    times = np.array([step.start for step in steps] + [steps[-1].end], np.int64)
    edges = boundaries(trace, launches, times)
    if edges[-1] <= edges[0]:
        raise InputError(f"{trace.path}: nothing ran in its steps")
    return steps, edges, notes


def _chosen(trace: Trace, options: TraceOptions) -> tuple[tuple[TraceStep, ...], tuple[str, ...]]:
    """The requested steps in order, none where no steps are marked; and notes."""
    low = -math.inf if options.first_step is None else options.first_step
    high = math.inf if options.last_step is None else options.last_step
    steps = sorted(trace.steps, key=lambda step: step.start)
    chosen = tuple(step for step in steps if low <= step.number <= high)
    if steps and not chosen:
        numbers = f"{steps[0].number} to {steps[-1].number}"
        raise InputError(f"{trace.path}: none of its steps ({numbers}) was requested")
    if options.window == "hta" and len(chosen) > 1:
        return chosen[:-1], (f"HTA's window: without the last step ({chosen[-1].number})",)
    return chosen, ()
