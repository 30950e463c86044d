"""One step of one rank along time, small enough to be drawn: `step_timeline`.

The accounts of the step are those of the ledger, to the nanosecond. The drawing is coarser: a
kernel or a gap longer than a pixel is a segment of its own; shorter ones of one account that lie
nearer than a pixel are merged into one segment, which says how much of it is filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from computeflow.errors import InputError
from computeflow.telemetry.intervals import Intervals
from computeflow.telemetry.traces.event_names import WorkKind
from computeflow.telemetry.traces.host_only import with_launches
from computeflow.telemetry.traces.own_updates import with_own_updates
from computeflow.telemetry.traces.rank_accounts import ASIDE, WindowAccounts, cut, roles
from computeflow.telemetry.traces.rank_identity import rank_of
from computeflow.telemetry.traces.rank_measurements import MAX_NAME, TraceOptions
from computeflow.telemetry.traces.trace import Ints, Trace, TraceStep, distinct
from computeflow.telemetry.traces.windows import find_window

MAX_SEGMENTS = 600
PIXELS = 1000
"""Width of a drawing; the report's is 960 (views/report.html)."""
_WIDEST = 2**62
"""Nanoseconds: whatever is short is one piece by then."""
_LANES = ("compute", "copy", "communication", "aside", "idle")
_WORKS = {
    "compute": (WorkKind.COMPUTE, WorkKind.MEMORY),
    "copy": (WorkKind.COPY,),
    "communication": (WorkKind.COMM,),
    "aside": tuple(WorkKind),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSegment:
    account: str
    start_seconds: float
    """Start, after the step's start."""
    end_seconds: float
    seconds: float
    """Time of the account between start and end; less than their distance where pieces were merged."""
    pieces: int
    name: str
    """The longest kernel in the segment; for idle time of the host its main cause; or ""."""
    name_seconds: float
    """Time of that kernel or cause within the segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    source: str
    rank: int
    step: int | None
    """The profiler's number; None where no step is marked and this is the whole recording."""
    steps: int
    """Steps in the window, among which this one's time is the median."""
    step_seconds: float
    accounts: dict[str, float]
    """Seconds of the step by account, as in the rank's ledger; `compute` is not split by FLOPs."""
    segments: tuple[TimelineSegment, ...]
    """Segments by lane, account and time."""
    merged_seconds: float
    """Pieces of one account that are shorter than this, and nearer to each other, are merged."""


def lane_of(account: str) -> str:
    if account == "optimizer" or account.startswith("compute"):
        return "compute"
    if account.startswith("comm"):
        return "communication"
    if account in ASIDE:
        return "aside"
    return "copy" if account == "copy" else "idle"


def step_timeline(
    trace: Trace,
    options: TraceOptions,
    rank: int | None = None,
    *,
    step: int | None = None,
    most: int = MAX_SEGMENTS,
) -> StepTimeline:
    """The median step among those that `options` request, or the one of the number `step`, in at most
    so many segments; `rank` is its number within the job.
    """
    if rank is None:
        rank, _ = rank_of(trace, options)
    trace, launches = with_launches(trace)
    steps, edges, _ = find_window(trace, launches, options)
    role = with_own_updates(trace, launches, roles(trace, launches))
    parts = cut(trace, launches, role, int(edges[0]), int(edges[-1]))
    lengths = np.diff(edges)
    index = int(np.argsort(lengths, kind="stable")[len(lengths) // 2])
    if step is not None:
        index = _index(steps, step)
    start, end = int(edges[index]), int(edges[index + 1])
    accounts = {name: intervals.clipped(start, end) for name, intervals in parts.accounts.items()}
    accounts = {
        name: accounts[name] for name in sorted(accounts, key=_order) if accounts[name].total
    }
    spans, gap = _merged(trace, accounts, max((end - start) // PIXELS, 1), most)
    return StepTimeline(
        source=str(trace.path),
        rank=rank,
        step=steps[index].number if steps else None,
        steps=max(len(steps), 1),
        step_seconds=(end - start) / 1e9,
        accounts={name: intervals.total / 1e9 for name, intervals in accounts.items()},
        segments=tuple(
            segment
            for name, drawn in spans.items()
            for segment in _segments(trace, parts, name, accounts[name], drawn, start)
        ),
        merged_seconds=gap / 1e9,
    )


def _index(steps: Sequence[TraceStep], number: int) -> int:
    found = [index for index, step in enumerate(steps) if step.number == number]
    if not found:
        numbers = ", ".join(str(step.number) for step in steps[:8])
        raise InputError(f"step {number} is not in the trace; it has {numbers or 'none'}")
    return found[0]


def _order(account: str) -> tuple[int, str]:
    return _LANES.index(lane_of(account)), account


def _merged(
    trace: Trace, accounts: dict[str, Intervals], gap: int, most: int
) -> tuple[dict[str, Intervals], int]:
    """The intervals to draw for each account; pieces are merged over longer gaps until they are few
    enough.
    """
    while True:
        spans = {name: _drawn(trace, name, intervals, gap) for name, intervals in accounts.items()}
        pieces = sum(map(len, spans.values()))
        if pieces <= max(most, len(spans)) or gap > _WIDEST:
            return spans, gap
        gap *= 2


def _drawn(trace: Trace, account: str, intervals: Intervals, gap: int) -> Intervals:
    intervals = _split(intervals, _long_kernels(trace, account, gap))
    short = intervals.end - intervals.start < gap
    apart = (intervals.start[1:] - intervals.end[:-1] > gap) | ~short[1:] | ~short[:-1]
    return Intervals(
        intervals.start[np.concatenate([[True], apart])],
        intervals.end[np.concatenate([apart, [True]])],
    )


def _long_kernels(trace: Trace, account: str, gap: int) -> Ints:
    """Times at which long kernels start and end."""
    device = trace.device
    rows = _rows(trace, account)
    rows = rows[device.end[rows] - device.start[rows] >= gap]
    return np.concatenate([device.start[rows], device.end[rows]])


def _split(intervals: Intervals, times: Ints) -> Intervals:
    """The same set, cut at these times."""
    inside = distinct(times[intervals.contains(times)])
    inside = inside[~np.isin(inside, intervals.start)]
    return Intervals(
        np.sort(np.concatenate([intervals.start, inside])),
        np.sort(np.concatenate([intervals.end, inside])),
    )


def _rows(trace: Trace, account: str) -> Ints:
    """Rows of the device's work that the account's lane may show."""
    works = _WORKS.get(lane_of(account), ())
    return np.flatnonzero(np.isin(trace.device.work, np.array(works, np.int8)))


def _segments(
    trace: Trace,
    parts: WindowAccounts,
    account: str,
    intervals: Intervals,
    drawn: Intervals,
    zero: int,
) -> list[TimelineSegment]:
    filled = intervals.within(drawn.start, drawn.end)
    begun = np.searchsorted(intervals.start, drawn.end) - np.searchsorted(
        intervals.start, drawn.start
    )
    pieces = np.maximum(begun, 1)  # kernels that follow each other without a gap are one piece
    names = _causes(parts, drawn) if account == "host" else _kernels(trace, account, drawn)
    return [
        TimelineSegment(
            account=account,
            start_seconds=(start - zero) / 1e9,
            end_seconds=(end - zero) / 1e9,
            seconds=seconds / 1e9,
            pieces=count,
            name=name,
            name_seconds=length / 1e9,
        )
        for start, end, seconds, count, (name, length) in zip(
            drawn.start.tolist(),
            drawn.end.tolist(),
            filled.tolist(),
            pieces.tolist(),
            names,
            strict=True,
        )
    ]


def _kernels(trace: Trace, account: str, drawn: Intervals) -> list[tuple[str, int]]:
    """The longest kernel within each segment."""
    rows = _rows(trace, account)
    start, end = trace.device.start[rows], trace.device.end[rows]
    reach = np.maximum.accumulate(end)
    first = np.searchsorted(reach, drawn.start, side="right")
    last = np.searchsorted(start, drawn.end, side="left")
    longest = []
    for low, high, left, right in zip(first, last, drawn.start, drawn.end, strict=True):
        inside = np.minimum(end[low:high], right) - np.maximum(start[low:high], left)
        if not len(inside) or inside.max() <= 0:
            longest.append(("", 0))
            continue
        most = int(inside.argmax())
        name = trace.names[trace.device.name[rows[low + most]]]
        longest.append((name[:MAX_NAME], int(inside[most])))
    return longest


def _causes(parts: WindowAccounts, drawn: Intervals) -> list[tuple[str, int]]:
    names = list(parts.host)
    within = np.array([parts.host[name].within(drawn.start, drawn.end) for name in names])
    most = within.argmax(axis=0)
    return [(names[row], int(within[row, index])) for index, row in enumerate(most.tolist())]
