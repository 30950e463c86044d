"""Which call launched what ran on the device, and where its steps begin there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.traces.trace import Ints, Trace

BEFORE = np.iinfo(np.int64).min // 4
"""When something was launched whose call is not in the trace: before it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """A row for each row of `Trace.device`."""

    call: Ints
    """Row of `Trace.calls`; -1 where it is not recorded."""
    start: Ints
    thread: NDArray[np.int32]
    """-1 where it is not known."""


def launches(trace: Trace) -> Launches:
    calls, wanted = trace.calls, trace.device.correlation
    if not len(calls):
        nothing = np.full(len(wanted), -1, np.int64)
        return Launches(
            call=nothing, start=np.full(len(wanted), BEFORE), thread=nothing.astype(np.int32)
        )
    order = np.argsort(calls.correlation, kind="stable")
    known = calls.correlation[order]
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    found = (known[at] == wanted) & (wanted >= 0)
    call = np.where(found, order[at], -1)
    return Launches(
        call=call,
        start=np.where(found, calls.start[call], BEFORE),
        thread=np.where(found, calls.thread[call], -1).astype(np.int32),
    )


def boundaries(trace: Trace, made: Launches, times: Ints) -> Ints:
    """Where moments of the host lie on the device, which runs behind it.

    A step ends there when the last of its work has ended, and not before the host is done with it; it
    does not reach into work of the next step that has begun already.
    """
    order = np.argsort(made.start, kind="stable")
    launched = made.start[order]
    ends = np.maximum.accumulate(trace.device.end[order])
    starts = np.minimum.accumulate(trace.device.start[order][::-1])[::-1]
    at = np.searchsorted(launched, times, side="left")
    far = np.iinfo(np.int64).max
    ended = np.where(at > 0, ends[np.maximum(at - 1, 0)], -far) if len(ends) else times
    begun = np.where(at < len(starts), starts[np.minimum(at, len(starts) - 1)], far)
    found = np.maximum(times, np.minimum(ended, begun))
    return np.asarray(np.maximum.accumulate(found))
