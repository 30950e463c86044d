"""Causes of host delays: every gap for which the host was late, attributed to a root cause by
`find_host_delays`.

A host that runs ahead of its device loses that lead through something: it waits for data, reads a
value back, collects garbage, copies from pageable memory. The gap that follows, and those after it
until the host is ahead again, count for that cause. A host that never gets ahead is slow in itself:
`launch`; where it launches whole graphs, the work between them is slow: `graph`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.intervals import EMPTY, Intervals, union
from computeflow.telemetry.traces.event_names import Call, Mark, WorkKind
from computeflow.telemetry.traces.launches import Launches
from computeflow.telemetry.traces.rank_accounts import Roles, WindowAccounts, intervals_of_mark
from computeflow.telemetry.traces.trace import Ints, Trace

_MIN_NS = 200_000
"""Least idle time of a root cause, and least lead that the host gives up by waiting: anything
shorter does not make the host late."""
_LEAD_NS = 1_000_000
"""Lead of the host, as time that work is queued on the device, at which it has recovered."""
_SMALL_BYTES = 1 << 16
"""A smaller copy to the host is a value that is read, not data that is moved."""
_ROOTS = (
    "input",
    "checkpoint",
    "evaluation",
    "gc",
    "allocator",
    "pageable",
    "sync",
    "optimizer",
    "launch",
    "graph",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDelays:
    seconds: dict[str, float]
    """Seconds of the account `host` by root cause: late gaps, without the device's own latency."""
    pageable: Intervals
    """Idle and exposed time of copies from or to pageable memory."""


def find_host_delays(
    trace: Trace, launches: Launches, role: Roles, parts: WindowAccounts
) -> HostDelays:
    late = union(
        *(
            np.concatenate([getattr(parts.host[name], edge) for name in _LATE])
            for edge in ("start", "end")
        )
    )
    pageable = _pageable_time(trace, launches, parts)
    if not len(late):
        return HostDelays(seconds={}, pageable=pageable)
    following = np.minimum(
        np.searchsorted(trace.device.start, late.end, side="left"), len(trace.device) - 1
    )
    begin, end = _periods(trace, launches, late, following)
    own = {
        "input": parts.accounts.get("input", EMPTY),
        "checkpoint": parts.accounts.get("checkpoint", EMPTY),
        "evaluation": parts.accounts.get("evaluation", EMPTY),
        "gc": parts.host["gc"],
        "allocator": parts.host["allocator"],
        "pageable": pageable,
    }
    most = np.full(len(late), _MIN_NS - 1, np.int64)
    root = np.full(len(late), _ROOTS.index("launch"), np.int8)
    for name, intervals in own.items():  # the longest wins; one at a time, for memory
        weight = intervals.within(begin, end)
        root[weight > most] = _ROOTS.index(name)
        np.maximum(most, weight, out=most)
    heavy = most >= _MIN_NS
    root = np.where(pageable_rows(trace)[following], _ROOTS.index("pageable"), root)
    heavy |= pageable_rows(trace)[following]
    synced = _read_back(trace, launches, begin, end)
    root = np.where(~heavy & synced, _ROOTS.index("sync"), root)
    lengths = (late.end - late.start) / 1e9
    for name, intervals in own.items():
        _cap(
            root,
            _ROOTS.index(name),
            lengths,
            intervals.total / 1e9 * (2 if name in parts.host else 1),
        )
    plain = root == _ROOTS.index("launch")
    root = np.where(plain & role.optimizer[following], _ROOTS.index("optimizer"), root)
    root = np.where(plain & _as_graphs(launches)[following], _ROOTS.index("graph"), root)
    seconds = np.bincount(root, weights=lengths, minlength=len(_ROOTS))
    return HostDelays(
        seconds={name: s for name, s in zip(_ROOTS, seconds.tolist(), strict=True) if s},
        pageable=pageable,
    )


def _as_graphs(launches: Launches) -> NDArray[np.bool_]:
    """Rows that were launched many at once, as graphs; none where most are launched one by one."""
    known = launches.call >= 0
    together = np.zeros(len(launches.call), bool)
    together[known] = np.bincount(launches.call[known])[launches.call[known]] > 1
    return together if 2 * int(together.sum()) > len(together) else np.zeros(len(together), bool)


def _cap(root: NDArray[np.int8], code: int, lengths: NDArray[np.float64], most: float) -> None:
    """Limit the gaps that follow a root cause to its own length: beyond that, the host is slow in
    itself.

    Garbage collections and allocations are gaps themselves, so the limit is twice their length.
    """
    rows = np.flatnonzero(root == code)
    beyond = np.cumsum(lengths[rows]) > most + 1e-12
    root[rows[beyond]] = _ROOTS.index("launch")


_LATE = ("gc", "allocator", "sync", "launch")


def _periods(
    trace: Trace, launches: Launches, late: Intervals, following: Ints
) -> tuple[Ints, Ints]:
    """The period in which each gap's cause lies: from the host's last lead to the launch that ended
    the gap; where the host never had a lead, only the gap itself.
    """
    device = trace.device
    ahead = np.flatnonzero(device.start - launches.start >= _LEAD_NS)
    last = np.searchsorted(ahead, following - 1, side="right") - 1
    since = device.start[ahead[last]] if len(ahead) else np.zeros(len(following), np.int64)
    begin = np.where(last >= 0, since, late.start)
    np.minimum(begin, late.start, out=begin)
    return np.asarray(begin), np.maximum(launches.start[following], late.end)


def _read_back(trace: Trace, launches: Launches, begin: Ints, end: Ints) -> NDArray[np.bool_]:
    """Whether in each period the host gave up its lead by waiting for its device."""
    calls = trace.calls
    waits = np.flatnonzero(calls.call == Call.SYNC)
    known = np.flatnonzero(launches.call >= 0)
    if not len(waits) or not len(known):
        return np.zeros(len(begin), bool)
    order = known[np.argsort(launches.start[known], kind="stable")]
    last = np.searchsorted(launches.start[order], calls.start[waits]) - 1
    lead = trace.device.start[order[np.maximum(last, 0)]] - calls.start[waits]
    ends = np.sort(calls.end[waits[(last >= 0) & (lead >= _MIN_NS)]])
    first, after = np.searchsorted(ends, begin), np.searchsorted(ends, end, side="right")
    return np.asarray(after > first)


def pageable_rows(trace: Trace) -> NDArray[np.bool_]:
    """Copies between the device and pageable host memory, without small values read back."""
    device = trace.device
    named = np.array(["ageable" in name for name in trace.names] or [False])
    upward = np.array(["dtoh" in name.lower() for name in trace.names] or [False])
    small = (device.bytes >= 0) & (device.bytes < _SMALL_BYTES)
    rows = (device.work == WorkKind.COPY) & named[device.name]
    return np.asarray(rows & ~(upward[device.name] & small))


def _pageable_time(trace: Trace, launches: Launches, parts: WindowAccounts) -> Intervals:
    """Time of such copies: the copy on the device, the call, and the idle wait in which it ends."""
    rows = pageable_rows(trace)
    if not rows.any():
        return EMPTY
    device, calls = trace.device, trace.calls
    known = rows & (launches.call >= 0)
    start = np.concatenate([device.start[rows], calls.start[launches.call[known]]])
    end = np.concatenate([device.end[rows], calls.end[launches.call[known]]])
    idle = parts.accounts.get("copy", EMPTY)
    for intervals in parts.host.values():
        idle = idle.either(intervals)
    return union(start, end).both(idle)


def loading(trace: Trace, parts: WindowAccounts) -> dict[str, float]:
    """Seconds of the account `input` by stage of the data loader; "" where no operator tells the
    stage.
    """
    waiting = parts.accounts.get("input", EMPTY)
    if not waiting.total:
        return {}
    collate = waiting.both(intervals_of_mark(trace, Mark.COLLATE))
    pin = waiting.both(intervals_of_mark(trace, Mark.PIN)).minus(collate)
    rest = waiting.minus(collate).minus(pin)
    workers = any(
        "MultiProcessing" in trace.names[name]
        for name in np.unique(trace.marks.name[trace.marks.mark == Mark.INPUT])
    )
    first = "workers" if workers else "read and decode"
    stages = {first: rest, "collate": collate, "copy": pin}
    return {name: intervals.total / 1e9 for name, intervals in stages.items() if intervals.total}
