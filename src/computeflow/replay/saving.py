"""Calls of the host while it saves a checkpoint: `saving_calls`, `saving_gaps`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.traces.event_names import WorkKind
from computeflow.telemetry.traces.step_graph import StepGraph

MIN_SAVED = 8
"""Fewest copies to pageable memory in a row that are a checkpoint."""
MIN_SAVED_BYTES = 1 << 20


def rows_named(graph: StepGraph, *texts: str) -> NDArray[np.bool_]:
    """Rows of the device's work whose name has all of these texts."""
    chosen = np.array([all(text in name for text in texts) for name in graph.names] or [False])
    return np.asarray(chosen[graph.device.name])


def saving_calls(graph: StepGraph) -> NDArray[np.bool_]:
    """Calls of the host while it saves: from the first of many copies to pageable memory to the next
    launch of a kernel after the last.
    """
    line, device = graph.line, graph.device
    calls = np.zeros(len(line), bool)
    rows = rows_named(graph, "DtoH", "ageable") & (device.call >= 0)
    moved = np.maximum(device.bytes[rows], 0)
    sizes = np.bincount(device.call[rows], weights=moved, minlength=len(line))
    copying = np.zeros(len(line), bool)
    copying[device.call[rows]] = True
    kernels = np.zeros(len(line), bool)
    kernels[device.call[(device.call >= 0) & (device.work == WorkKind.COMPUTE)]] = True
    # between two kernels, everything is one region
    region = np.cumsum(kernels)
    count = np.bincount(region[copying], minlength=int(region[-1]) + 1 if len(region) else 1)
    size = np.bincount(region, weights=sizes, minlength=len(count))
    saved = (count >= MIN_SAVED) & (size >= MIN_SAVED_BYTES)
    if not saved.any():
        return calls
    for number in np.flatnonzero(saved).tolist():
        mine = np.flatnonzero((region == number) & ~kernels)
        first = mine[np.argmax(copying[mine])]
        calls[first : mine[-1] + 1] = True
        following = mine[-1] + 1
        if following < len(calls):
            calls[following] = False
    return calls


def saving_gaps(graph: StepGraph) -> NDArray[np.bool_]:
    """Calls before which the host saves: those of saving, and the one after them, before which it still
    writes.
    """
    calls = saving_calls(graph)
    calls[1:] |= calls[:-1].copy()
    return calls
