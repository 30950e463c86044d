"""Owners of memory, by the stack that allocated it and by how long it was held against the steps.

Where neither tells, the owner is `unknown`, with the place in the code.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.memory.history import History
from computeflow.telemetry.memory.stacks import StackKind
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


def owners_of(history: History, steps: Steps, kinds: Sequence[StackKind]) -> NDArray[np.int8]:
    """The index in `OWNERS` of each allocation's owner."""
    pieces = history.allocations
    kind = np.array([int(value) for value in kinds], np.int8)[pieces.stack]
    outlived = _between(pieces.born, pieces.gone, steps.ends)
    updates = _between(pieces.born, pieces.gone, steps.optimizer)
    ended = pieces.gone < len(history)
    stays = (outlived >= 2) | ~ended
    in_update = _during_update(steps, pieces.born)
    mute = bool((kind == StackKind.SILENT).all())
    silent = (kind == StackKind.SILENT) & (pieces.born >= 0) & (len(steps) > 0)
    backward = (kind == StackKind.BACKWARD) | (silent & ~in_update)
    gradient = (updates >= 1) & (outlived <= 1) & (ended | (kind != StackKind.SILENT))
    owners = np.full(len(pieces), UNKNOWN, np.int8)
    rules = (
        (kind == StackKind.WEIGHTS, WEIGHTS),
        (kind == StackKind.WORKSPACE, WORKSPACES),
        (kind == StackKind.COMMUNICATION, BUFFERS),
        ((kind == StackKind.FORWARD) & (outlived <= 1), ACTIVATIONS),
        ((kind == StackKind.OPTIMIZER) & stays, OPTIMIZER),
        ((kind == StackKind.OPTIMIZER) & ~stays, WORKSPACES),
        ((kind == StackKind.COMMUNICATION) & gradient, GRADIENTS),
        (backward & gradient, GRADIENTS),
        ((kind == StackKind.BACKWARD) & stays, GRADIENTS),
        (backward & (updates == 0) & (outlived == 0) & ~stays, ACTIVATIONS if mute else WORKSPACES),
        (silent & in_update & stays, OPTIMIZER),
    )
    for rows, owner in rules:
        owners[rows] = owner
    return owners


def _between(
    born: NDArray[np.int64], gone: NDArray[np.int64], moments: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Number of the moments in each allocation's lifetime; a moment lies just before an event."""
    first = np.searchsorted(moments, born, side="right")
    return np.asarray(np.searchsorted(moments, gone, side="right") - first)


def _during_update(steps: Steps, born: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each allocation was made while the optimizer stepped."""
    if not len(steps.optimizer):
        return np.zeros(len(born), bool)
    at = np.searchsorted(steps.optimizer, born, side="right") - 1
    begun = steps.optimizer[np.maximum(at, 0)]
    end = np.searchsorted(steps.ends, begun, side="left")
    until = np.where(end < len(steps.ends), steps.ends[np.minimum(end, len(steps.ends) - 1)], begun)
    return np.asarray((at >= 0) & (born < until))
