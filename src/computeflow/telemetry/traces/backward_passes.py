"""Backward passes of a step, and gradients that are reduced in more of them than the last."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.intervals import union
from computeflow.telemetry.traces.event_names import Mark
from computeflow.telemetry.traces.trace import Ints, Trace

_ALWAYS = 0.9
"""Least share of backward passes that reduce, where gradients are reduced in every one."""
_NEVER = 0.1
"""Most of the reductions that may begin outside of backward passes, where they are of gradients."""


def early_reductions(
    trace: Trace, submitted: Ints, reduces: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which collectives reduce gradients in a backward pass that is not the last before the
    optimizer, where every pass reduces them. `submitted` are the times at which the host submitted
    each collective, `reduces` marks reductions.
    """
    nothing = np.zeros(len(submitted), bool)
    starts, forwards = _passes(trace)
    steps = _optimizer_steps(trace)
    if len(starts) < 2 or not len(steps) or not reduces.any():
        return nothing
    turn = np.searchsorted(starts, submitted, side="right") - 1
    follows = np.searchsorted(forwards, submitted, side="right")
    begun = forwards[np.maximum(follows - 1, 0)] if len(forwards) else submitted
    inside = (turn >= 0) & ((follows == 0) | (starts[np.maximum(turn, 0)] > begun))
    ours = reduces & inside
    if (reduces & ~inside).sum() > _NEVER * reduces.sum():
        return nothing
    number = np.searchsorted(steps, starts)  # the optimizer step that each pass comes before
    last = np.concatenate([number[1:] != number[:-1], [True]])
    passes = len(starts) / len(np.unique(number))
    reducing = len(np.unique(turn[ours])) / len(starts)
    if passes < 1.5 or reducing < _ALWAYS:
        return nothing
    return np.asarray(ours & ~last[np.maximum(turn, 0)])


def _passes(trace: Trace) -> tuple[Ints, Ints]:
    """Starts of backward passes, and of the operators of forward passes."""
    marks = trace.marks
    backward = marks.mark == Mark.BACKWARD
    running = union(marks.start[backward], marks.end[backward])
    forwards = marks.start[marks.mark == Mark.FORWARD_OP]
    forwards = forwards[~running.contains(forwards)]  # those inside compute activations again
    begins = running.start
    before = np.searchsorted(forwards, begins)
    first = np.concatenate([[True], before[1:] != before[:-1]])[: len(begins)]
    return begins[first], forwards


def _optimizer_steps(trace: Trace) -> Ints:
    return np.sort(trace.marks.start[_is_optimizer(trace)])


def optimizer_ends(trace: Trace) -> Ints:
    return np.sort(trace.marks.end[_is_optimizer(trace)])


def _is_optimizer(trace: Trace) -> NDArray[np.bool_]:
    named = np.array([name.startswith("Optimizer.step#") for name in trace.names] or [False])
    return np.asarray((trace.marks.mark == Mark.OPTIMIZER) & named[trace.marks.name])


def pass_ends(trace: Trace) -> Ints:
    """When the forward pass after each backward pass begins: where the optimizer leaves no event of
    its own, what it does lies before that.
    """
    starts, forwards = _passes(trace)
    after = np.searchsorted(forwards, starts)
    return np.asarray(forwards[after[after < len(forwards)]])
