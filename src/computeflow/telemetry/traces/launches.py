"""Links from work on the device to the calls that launched it, and the steps' bounds on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.traces.trace import Ints, Trace

BEFORE = np.iinfo(np.int64).min // 4
"""Launch time of work whose call is not in the trace: before anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """The launch of each row of `Trace.device`."""

    call: Ints
    """Row of `Trace.calls`; -1 where it was not recorded."""
    start: Ints
    thread: NDArray[np.int32]
    """Thread of the call; -1 where unknown."""


def launches(trace: Trace) -> Launches:
    calls, correlation = trace.calls, trace.device.correlation
    if not len(calls):
        unknown = np.full(len(correlation), -1, np.int64)
        return Launches(
            call=unknown, start=np.full(len(correlation), BEFORE), thread=unknown.astype(np.int32)
        )
    order = np.argsort(calls.correlation, kind="stable")
    known = calls.correlation[order]
    at = np.minimum(np.searchsorted(known, correlation), len(known) - 1)
    matched = (known[at] == correlation) & (correlation >= 0)
    call = np.where(matched, order[at], -1)
    return Launches(
        call=call,
        start=np.where(matched, calls.start[call], BEFORE),
        thread=np.where(matched, calls.thread[call], -1).astype(np.int32),
    )


def boundaries(trace: Trace, launches: Launches, times: Ints) -> Ints:
    """The times on the device that correspond to these times on the host, which runs ahead of it.

    A step ends on the device when the last of its work has ended, and not before the host is done
    with it; it does not reach into work of the next step that has already begun.
    """
    order = np.argsort(launches.start, kind="stable")
    launched = launches.start[order]
    ends = np.maximum.accumulate(trace.device.end[order])
    starts = np.minimum.accumulate(trace.device.start[order][::-1])[::-1]
    at = np.searchsorted(launched, times, side="left")
    far = np.iinfo(np.int64).max
    ended = np.where(at > 0, ends[np.maximum(at - 1, 0)], -far) if len(ends) else times
    begun = np.where(at < len(starts), starts[np.minimum(at, len(starts) - 1)], far)
    bounds = np.maximum(times, np.minimum(ended, begun))
    return np.asarray(np.maximum.accumulate(bounds))
