"""What set the host back: every late gap of the device laid to its root, `setbacks`.

A host that is ahead of its device loses that lead by something: it waits for data, reads a value back,
collects garbage, copies from pageable memory. The gap that follows, and those after it until the host
is ahead again, are laid to that. A host that never gets ahead is slow by itself: `launch`; where it
launches whole graphs, it is what it does between them that is slow: `graph`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.intervals import EMPTY, Intervals, union
from computeflow.telemetry.traces.accounts import Cut, Roles, marked
from computeflow.telemetry.traces.launches import Launches
from computeflow.telemetry.traces.names import Call, Mark, Work
from computeflow.telemetry.traces.trace import Ints, Trace

_LEAST_NS = 200_000
"""Of a root's own idle time, and of the lead that a host gives up when it waits: less is not what makes
it late."""
_LEAD_NS = 1_000_000
"""How long work waits on the device when the host has its lead back."""
_SMALL_BYTES = 1 << 16
"""A copy to the host of less than this is a value that is read, not data that is moved."""
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
class Setbacks:
    seconds: dict[str, float]
    """Of the account `host`, what came of each root: late gaps, without the device's own latency."""
    pageable: Intervals
    """Idle and exposed time that copies from or to pageable memory take themselves."""


def setbacks(trace: Trace, made: Launches, role: Roles, parts: Cut) -> Setbacks:
    late = union(
        *(
            np.concatenate([getattr(parts.host[name], edge) for name in _LATE])
            for edge in ("start", "end")
        )
    )
    pageable = _pageable_time(trace, made, parts)
    if not len(late):
        return Setbacks(seconds={}, pageable=pageable)
    following = np.minimum(
        np.searchsorted(trace.device.start, late.end, side="left"), len(trace.device) - 1
    )
    begin, end = _periods(trace, made, late, following)
    own = {
        "input": parts.accounts.get("input", EMPTY),
        "checkpoint": parts.accounts.get("checkpoint", EMPTY),
        "evaluation": parts.accounts.get("evaluation", EMPTY),
        "gc": parts.host["gc"],
        "allocator": parts.host["allocator"],
        "pageable": pageable,
    }
    most = np.full(len(late), _LEAST_NS - 1, np.int64)
    root = np.full(len(late), _ROOTS.index("launch"), np.int8)
    for name, some in own.items():  # the heaviest; one after another, for memory
        weight = some.within(begin, end)
        root[weight > most] = _ROOTS.index(name)
        np.maximum(most, weight, out=most)
    heavy = most >= _LEAST_NS
    root = np.where(pageable_rows(trace)[following], _ROOTS.index("pageable"), root)
    heavy |= pageable_rows(trace)[following]
    synced = _read_back(trace, made, begin, end)
    root = np.where(~heavy & synced, _ROOTS.index("sync"), root)
    lengths = (late.end - late.start) / 1e9
    for name, some in own.items():
        _cap(root, _ROOTS.index(name), lengths, some.total / 1e9 * (2 if name in parts.host else 1))
    plain = root == _ROOTS.index("launch")
    root = np.where(plain & role.optimizer[following], _ROOTS.index("optimizer"), root)
    root = np.where(plain & _as_graphs(made)[following], _ROOTS.index("graph"), root)
    found = np.bincount(root, weights=lengths, minlength=len(_ROOTS))
    return Setbacks(
        seconds={name: s for name, s in zip(_ROOTS, found.tolist(), strict=True) if s},
        pageable=pageable,
    )


def _as_graphs(made: Launches) -> NDArray[np.bool_]:
    """Which rows were launched many at once; none where most are launched one by one."""
    known = made.call >= 0
    together = np.zeros(len(made.call), bool)
    together[known] = np.bincount(made.call[known])[made.call[known]] > 1
    return together if 2 * int(together.sum()) > len(together) else np.zeros(len(together), bool)


def _cap(root: NDArray[np.int8], code: int, lengths: NDArray[np.float64], most: float) -> None:
    """What follows a root is no more than the root itself: beyond that, the host is slow by itself.

    Collections and allocations are gaps themselves, so there it is twice as much.
    """
    rows = np.flatnonzero(root == code)
    beyond = np.cumsum(lengths[rows]) > most + 1e-12
    root[rows[beyond]] = _ROOTS.index("launch")


_LATE = ("gc", "allocator", "sync", "launch")


def _periods(trace: Trace, made: Launches, late: Intervals, following: Ints) -> tuple[Ints, Ints]:
    """For each gap, from when the host last had its lead to its launch that ended the gap; of a host
    that never had one, only the gap itself: there is no lead that something before it took away.
    """
    device = trace.device
    ahead = np.flatnonzero(device.start - made.start >= _LEAD_NS)
    last = np.searchsorted(ahead, following - 1, side="right") - 1
    since = device.start[ahead[last]] if len(ahead) else np.zeros(len(following), np.int64)
    begin = np.where(last >= 0, since, late.start)
    np.minimum(begin, late.start, out=begin)
    return np.asarray(begin), np.maximum(made.start[following], late.end)


def _read_back(trace: Trace, made: Launches, begin: Ints, end: Ints) -> NDArray[np.bool_]:
    """In which periods a host that had a lead waited for its device and gave it up."""
    calls = trace.calls
    waits = np.flatnonzero(calls.call == Call.SYNC)
    known = np.flatnonzero(made.call >= 0)
    if not len(waits) or not len(known):
        return np.zeros(len(begin), bool)
    order = known[np.argsort(made.start[known], kind="stable")]
    last = np.searchsorted(made.start[order], calls.start[waits]) - 1
    lead = trace.device.start[order[np.maximum(last, 0)]] - calls.start[waits]
    ends = np.sort(calls.end[waits[(last >= 0) & (lead >= _LEAST_NS)]])
    first, after = np.searchsorted(ends, begin), np.searchsorted(ends, end, side="right")
    return np.asarray(after > first)


def pageable_rows(trace: Trace) -> NDArray[np.bool_]:
    """Copies between the device and memory that it cannot read by itself; not values read back."""
    device = trace.device
    named = np.array(["ageable" in name for name in trace.names] or [False])
    upward = np.array(["dtoh" in name.lower() for name in trace.names] or [False])
    small = (device.bytes >= 0) & (device.bytes < _SMALL_BYTES)
    rows = (device.work == Work.COPY) & named[device.name]
    return np.asarray(rows & ~(upward[device.name] & small))


def _pageable_time(trace: Trace, made: Launches, parts: Cut) -> Intervals:
    """Of such copies, what the device moves or idles through: the call, and the wait it ends with."""
    rows = pageable_rows(trace)
    if not rows.any():
        return EMPTY
    device, calls = trace.device, trace.calls
    known = rows & (made.call >= 0)
    start = np.concatenate([device.start[rows], calls.start[made.call[known]]])
    end = np.concatenate([device.end[rows], calls.end[made.call[known]]])
    idle = parts.accounts.get("copy", EMPTY)
    for some in parts.host.values():
        idle = idle.either(some)
    return union(start, end).both(idle)


def loading(trace: Trace, parts: Cut) -> dict[str, float]:
    """Seconds of the account `input` by stage of the loader; "" is what no operator tells apart."""
    waiting = parts.accounts.get("input", EMPTY)
    if not waiting.total:
        return {}
    collate = waiting.both(marked(trace, Mark.COLLATE))
    pin = waiting.both(marked(trace, Mark.PIN)).minus(collate)
    rest = waiting.minus(collate).minus(pin)
    workers = any(
        "MultiProcessing" in trace.names[name]
        for name in np.unique(trace.marks.name[trace.marks.mark == Mark.INPUT])
    )
    first = "workers" if workers else "read and decode"
    found = {first: rest, "collate": collate, "copy": pin}
    return {name: some.total / 1e9 for name, some in found.items() if some.total}
