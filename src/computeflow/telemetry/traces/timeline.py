"""One step of one rank along time, small enough to be drawn: `step_timeline`.

The accounts of the step are those of the ledger, to the nanosecond. What is drawn of them is coarser:
a kernel or a gap longer than a pixel is a segment of its own; shorter ones of one account that lie
nearer than a pixel are one segment, which says how much of it is filled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from computeflow.telemetry.intervals import Intervals
from computeflow.telemetry.traces.accounts import ASIDE, Cut, cut, roles
from computeflow.telemetry.traces.hosts import with_launches
from computeflow.telemetry.traces.identity import rank_of
from computeflow.telemetry.traces.measured import MOST_NAME, Options
from computeflow.telemetry.traces.names import Work
from computeflow.telemetry.traces.trace import Ints, Trace, distinct
from computeflow.telemetry.traces.windows import find_window

MOST_SEGMENTS = 600
PIXELS = 1000
"""Of a drawing over the whole width of a report, which is 960 (views/report.html)."""
_LANES = ("compute", "copy", "communication", "aside", "idle")
_WORKS = {
    "compute": (Work.COMPUTE, Work.MEMORY),
    "copy": (Work.COPY,),
    "communication": (Work.COMM,),
    "aside": tuple(Work),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    account: str
    start_seconds: float
    """After the step's start."""
    end_seconds: float
    seconds: float
    """Of the account, between start and end; less than their distance where pieces were merged."""
    pieces: int
    name: str
    """The kernel that runs longest in it; of idle time of the host its main cause; or nothing."""
    name_seconds: float
    """Of that kernel, within the segment; of that cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    source: str
    rank: int
    step: int | None
    """As the profiler numbers it; None where none is marked and this is the whole recording."""
    steps: int
    """Of the window, among which this one's time is the median."""
    step_seconds: float
    accounts: dict[str, float]
    """Seconds of the step, as the rank's ledger has them; `compute` is not split by FLOPs."""
    segments: tuple[Segment, ...]
    """By lane, account and time."""
    merged_seconds: float
    """Pieces of one account that are shorter and nearer to each other than this are one segment."""


def lane_of(account: str) -> str:
    if account == "optimizer" or account.startswith("compute"):
        return "compute"
    if account.startswith("comm"):
        return "communication"
    if account in ASIDE:
        return "aside"
    return "copy" if account == "copy" else "idle"


def step_timeline(trace: Trace, options: Options, rank: int | None = None) -> Timeline:
    """The median step of those that `options` ask for; `rank`: where its job numbers it."""
    if rank is None:
        rank, _ = rank_of(trace, options)
    trace, made = with_launches(trace)
    steps, edges, _ = find_window(trace, made, options)
    parts = cut(trace, made, roles(trace, made), int(edges[0]), int(edges[-1]))
    lengths = np.diff(edges)
    place = int(np.argsort(lengths, kind="stable")[len(lengths) // 2])
    start, end = int(edges[place]), int(edges[place + 1])
    accounts = {name: some.clipped(start, end) for name, some in parts.accounts.items()}
    accounts = {
        name: accounts[name] for name in sorted(accounts, key=_order) if accounts[name].total
    }
    spans, gap = _merged(trace, accounts, max((end - start) // PIXELS, 1))
    return Timeline(
        source=str(trace.path),
        rank=rank,
        step=steps[place].number if steps else None,
        steps=max(len(steps), 1),
        step_seconds=(end - start) / 1e9,
        accounts={name: some.total / 1e9 for name, some in accounts.items()},
        segments=tuple(
            segment
            for name, drawn in spans.items()
            for segment in _segments(trace, parts, name, accounts[name], drawn, start)
        ),
        merged_seconds=gap / 1e9,
    )


def _order(account: str) -> tuple[int, str]:
    return _LANES.index(lane_of(account)), account


def _merged(
    trace: Trace, accounts: dict[str, Intervals], gap: int
) -> tuple[dict[str, Intervals], int]:
    """What is drawn of each account, with what counts as short doubled until it is little enough."""
    while True:
        spans = {name: _drawn(trace, name, some, gap) for name, some in accounts.items()}
        if sum(map(len, spans.values())) <= MOST_SEGMENTS:
            return spans, gap
        gap *= 2


def _drawn(trace: Trace, account: str, some: Intervals, gap: int) -> Intervals:
    some = _split(some, _long_kernels(trace, account, gap))
    short = some.end - some.start < gap
    apart = (some.start[1:] - some.end[:-1] > gap) | ~short[1:] | ~short[:-1]
    return Intervals(
        some.start[np.concatenate([[True], apart])], some.end[np.concatenate([apart, [True]])]
    )


def _long_kernels(trace: Trace, account: str, gap: int) -> Ints:
    """When they start and end."""
    device = trace.device
    rows = _rows(trace, account)
    rows = rows[device.end[rows] - device.start[rows] >= gap]
    return np.concatenate([device.start[rows], device.end[rows]])


def _split(some: Intervals, times: Ints) -> Intervals:
    """The same set, cut at these times."""
    inside = distinct(times[some.contains(times)])
    inside = inside[~np.isin(inside, some.start)]
    return Intervals(
        np.sort(np.concatenate([some.start, inside])), np.sort(np.concatenate([some.end, inside]))
    )


def _rows(trace: Trace, account: str) -> Ints:
    """Of the device's work, what the account's lane may show."""
    works = _WORKS.get(lane_of(account), ())
    return np.flatnonzero(np.isin(trace.device.work, np.array(works, np.int8)))


def _segments(
    trace: Trace, parts: Cut, account: str, some: Intervals, drawn: Intervals, zero: int
) -> list[Segment]:
    filled = some.within(drawn.start, drawn.end)
    begun = np.searchsorted(some.start, drawn.end) - np.searchsorted(some.start, drawn.start)
    pieces = np.maximum(begun, 1)  # kernels that follow each other without a gap are one piece
    names = _causes(parts, drawn) if account == "host" else _kernels(trace, account, drawn)
    return [
        Segment(
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
    """The kernel that runs longest within each segment."""
    rows = _rows(trace, account)
    start, end = trace.device.start[rows], trace.device.end[rows]
    reach = np.maximum.accumulate(end)
    first = np.searchsorted(reach, drawn.start, side="right")
    last = np.searchsorted(start, drawn.end, side="left")
    found = []
    for low, high, left, right in zip(first, last, drawn.start, drawn.end, strict=True):
        inside = np.minimum(end[low:high], right) - np.maximum(start[low:high], left)
        if not len(inside) or inside.max() <= 0:
            found.append(("", 0))
            continue
        most = int(inside.argmax())
        name = trace.names[trace.device.name[rows[low + most]]]
        found.append((name[:MOST_NAME], int(inside[most])))
    return found


def _causes(parts: Cut, drawn: Intervals) -> list[tuple[str, int]]:
    names = list(parts.host)
    within = np.array([parts.host[name].within(drawn.start, drawn.end) for name in names])
    most = within.argmax(axis=0)
    return [(names[row], int(within[row, place])) for place, row in enumerate(most.tolist())]
