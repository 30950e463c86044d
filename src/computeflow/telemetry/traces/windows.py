"""The stretch of a trace that is analysed: its steps, and their bounds on the device."""

from __future__ import annotations

import numpy as np

from computeflow.errors import InputError
from computeflow.telemetry.traces.launches import Launches, boundaries
from computeflow.telemetry.traces.measured import Options
from computeflow.telemetry.traces.trace import Ints, Step, Trace


def find_window(
    trace: Trace, made: Launches, options: Options
) -> tuple[tuple[Step, ...], Ints, tuple[str, ...]]:
    """The steps that were asked for, and their bounds on the device."""
    low, high = options.first_step, options.last_step
    steps = sorted(trace.steps, key=lambda step: step.start)
    chosen = [
        step
        for step in steps
        if (low is None or step.number >= low) and (high is None or step.number <= high)
    ]
    if steps and not chosen:
        numbers = f"{steps[0].number} to {steps[-1].number}"
        raise InputError(f"{trace.path}: none of its steps ({numbers}) is asked for")
    notes: tuple[str, ...] = ()
    if options.window == "hta" and len(chosen) > 1:
        notes = (f"HTA's window: without the last step ({chosen[-1].number})",)
        chosen = chosen[:-1]
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
    return tuple(chosen), edges, notes
