"""Whose memory it is: by the stack that asked for it, and by how long it was held against the steps.

What neither tells is `unknown`, with its place in the code.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.memory.history import History
from computeflow.telemetry.memory.stacks import Kind
from computeflow.telemetry.memory.steps import Steps

OWNERS = (
    "weights",
    "gradients",
    "optimizer state",
    "activations",
    "workspaces",
    "communication buffers",
    "unknown",
)
WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, WORKSPACES, BUFFERS, UNKNOWN = range(len(OWNERS))


def owners_of(history: History, steps: Steps, kinds: Sequence[Kind]) -> NDArray[np.int8]:
    """For each allocation, its place in `OWNERS`."""
    pieces = history.allocations
    kind = np.array([int(one) for one in kinds], np.int8)[pieces.stack]
    outlived = _between(pieces.born, pieces.gone, steps.ends)
    updates = _between(pieces.born, pieces.gone, steps.optimizer)
    ended = pieces.gone < len(history)
    stays = (outlived >= 2) | ~ended
    in_update = _during_update(steps, pieces.born)
    mute = bool((kind == Kind.SILENT).all())
    silent = (kind == Kind.SILENT) & (pieces.born >= 0) & (len(steps) > 0)
    backward = (kind == Kind.BACKWARD) | (silent & ~in_update)
    gradient = (updates >= 1) & (outlived <= 1) & (ended | (kind != Kind.SILENT))
    found = np.full(len(pieces), UNKNOWN, np.int8)
    rules = (
        (kind == Kind.WEIGHTS, WEIGHTS),
        (kind == Kind.WORKSPACE, WORKSPACES),
        (kind == Kind.COMMUNICATION, BUFFERS),
        ((kind == Kind.FORWARD) & (outlived <= 1), ACTIVATIONS),
        ((kind == Kind.OPTIMIZER) & stays, OPTIMIZER),
        ((kind == Kind.OPTIMIZER) & ~stays, WORKSPACES),
        ((kind == Kind.COMMUNICATION) & gradient, GRADIENTS),
        (backward & gradient, GRADIENTS),
        ((kind == Kind.BACKWARD) & stays, GRADIENTS),
        (backward & (updates == 0) & (outlived == 0) & ~stays, ACTIVATIONS if mute else WORKSPACES),
        (silent & in_update & stays, OPTIMIZER),
    )
    for rows, owner in rules:
        found[rows] = owner
    return found


def _between(
    born: NDArray[np.int64], gone: NDArray[np.int64], moments: NDArray[np.int64]
) -> NDArray[np.int64]:
    """How many of the moments an allocation lives through; each lies just before an event."""
    first = np.searchsorted(moments, born, side="right")
    return np.asarray(np.searchsorted(moments, gone, side="right") - first)


def _during_update(steps: Steps, born: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Made while the optimizer stepped."""
    if not len(steps.optimizer):
        return np.zeros(len(born), bool)
    at = np.searchsorted(steps.optimizer, born, side="right") - 1
    begun = steps.optimizer[np.maximum(at, 0)]
    end = np.searchsorted(steps.ends, begun, side="left")
    until = np.where(end < len(steps.ends), steps.ends[np.minimum(end, len(steps.ends) - 1)], begun)
    return np.asarray((at >= 0) & (born < until))
