"""Figures by the definitions of Holistic Trace Analysis (HTA), for comparing the two tools.

HTA leaves out what was launched at or after the start of the last step, counts every copy and
memset as "non-compute", tells kinds apart by name alone, and rounds fractional times inwards to
whole microseconds. None of this goes into a ledger.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from computeflow.telemetry.intervals import Intervals, union
from computeflow.telemetry.traces.trace import Trace

_COMM = re.compile(r"^nccl|^hip|^hccl|ncclKernel")
_MEMORY = re.compile(r"^Memcpy|^Memset|^dma", re.IGNORECASE)
_SYNC = re.compile(r"Sync$")


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaBreakdown:
    """HTA's breakdown in microseconds, under HTA's names."""

    idle_time: float
    compute_time: float
    non_compute_time: float
    kernel_time: float
    overlap_percent: float
    """Percentage of communication that computation hides."""


def hta_breakdown(trace: Trace) -> HtaBreakdown | None:
    """HTA's breakdown; None where no kernel is left in its window."""
    device = trace.device
    comm, memory, sync = (
        np.array([bool(p.search(name)) for name in trace.names]) for p in (_COMM, _MEMORY, _SYNC)
    )
    keep = _window(trace)
    if not keep.any():
        return None
    name = device.name[keep]
    start, end = device.start[keep] / 1e3, device.end[keep] / 1e3
    if ((start % 1) != 0).any() or ((end % 1) != 0).any():
        start, end = np.ceil(start), np.floor(end)
    begin, finish = start.astype(np.int64), end.astype(np.int64)
    is_comm = comm[name]
    is_compute = ~is_comm & ~memory[name] & ~sync[name]
    busy = union(begin, finish)
    compute = union(begin[is_compute], finish[is_compute])
    communication = union(begin[is_comm], finish[is_comm])
    whole = int(busy.end[-1] - busy.start[0]) if len(busy) else 0
    idle = whole - busy.total
    return HtaBreakdown(
        idle_time=idle,
        compute_time=compute.total,
        non_compute_time=whole - compute.total - idle,
        kernel_time=whole,
        overlap_percent=_overlap(communication, compute),
    )


def _overlap(communication: Intervals, compute: Intervals) -> float:
    return (
        round(100 * communication.both(compute).total / communication.total, 2)
        if communication.total
        else 0.0
    )


def _window(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Kernels launched before the last step starts; without steps, all with a recorded launch."""
    device, calls = trace.device, trace.calls
    if not len(calls):
        return np.zeros(len(device), bool)
    order = np.argsort(calls.correlation, kind="stable")
    known = calls.correlation[order]
    at = np.searchsorted(known, device.correlation)
    launched = (at < len(known)) & (known[np.minimum(at, len(known) - 1)] == device.correlation)
    begin = calls.start[order][np.minimum(at, len(known) - 1)]
    if not trace.steps:
        return np.asarray(launched)
    last = max(step.start for step in trace.steps)
    return np.asarray(launched & (begin < last))
