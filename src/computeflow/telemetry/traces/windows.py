"""The stretch of a trace that is analysed: its steps, and their bounds on the device."""

from __future__ import annotations

import math

import numpy as np

from computeflow.errors import InputError
from computeflow.telemetry.traces.launches import Launches, boundaries
from computeflow.telemetry.traces.measured import Options
from computeflow.telemetry.traces.trace import Ints, Step, Trace


def find_window(
    trace: Trace, made: Launches, options: Options
) -> tuple[tuple[Step, ...], Ints, tuple[str, ...]]:
    """The steps that were asked for, and their bounds on the device."""
    chosen, notes = _chosen(trace, options)
    if options.window == "whole" or not chosen:
        edges = np.array([trace.device.start[0], trace.device.end.max()], np.int64)
        if edges[1] <= edges[0]:
            raise InputError(f"{trace.path}: what it recorded takes no time")
        note = () if options.window == "whole" else ("no steps are marked: the whole recording",)
        return (), edges, note
    times = np.array([step.start for step in chosen] + [chosen[-1].end], np.int64)
    edges = boundaries(trace, made, times)
    if edges[-1] <= edges[0]:
        raise InputError(f"{trace.path}: nothing ran in its steps")
    return chosen, edges, notes


def _chosen(trace: Trace, options: Options) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """The marked steps that are asked for, in order; none where none is marked."""
    low = -math.inf if options.first_step is None else options.first_step
    high = math.inf if options.last_step is None else options.last_step
    steps = sorted(trace.steps, key=lambda step: step.start)
    chosen = tuple(s for s in steps if low <= s.number <= high)
    if steps and not chosen:
        numbers = f"{steps[0].number} to {steps[-1].number}"
        raise InputError(f"{trace.path}: none of its steps ({numbers}) is asked for")
    if options.window == "hta" and len(chosen) > 1:
        return chosen[:-1], (f"HTA's window: without the last step ({chosen[-1].number})",)
    return chosen, ()
