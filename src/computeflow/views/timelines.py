"""`timeline_figure`: one step of one rank along time, a line for each account."""

from __future__ import annotations

import textwrap
from html import escape
from itertools import groupby

from computeflow.ledger import ACCOUNTS
from computeflow.telemetry.traces.step_timelines import (
    PIXELS,
    StepTimeline,
    TimelineSegment,
    lane_of,
)
from computeflow.units import format_seconds, format_share
from computeflow.views.figures import HATCHED, OWNERS, Data, Figure, base_layout, value_axis
from computeflow.views.flows import HOVER
from computeflow.views.tables import Table, columns

_MS = 1e3
_ROW_PIXELS = 34
_TALL, _LOW = 0.8, 0.1
"""Parts of a line's height: a filled segment, and the smallest visible one."""
_NAME, _NAME_LINE = 120, 48
"""Characters of a kernel's name on hover, and of a line of it."""


def timeline_figure(timeline: StepTimeline) -> Figure:
    names = list(timeline.accounts)
    layout = base_layout(len(names), _ROW_PIXELS) | {"hoverlabel": HOVER, "hovermode": "closest"}
    layout["xaxis"] = value_axis("ms of the step") | {"range": [0, _MS * timeline.step_seconds]}
    layout["yaxis"] |= {
        "range": [len(names) - 0.5, -0.5],
        "tickvals": list(range(len(names))),
        "ticktext": [_label(name) for name in names],
    }
    grouped = groupby(timeline.segments, key=lambda segment: segment.account)
    traces = [_line(list(some), names.index(name), timeline) for name, some in grouped]
    seen = set(HATCHED)  # two greys in a legend tell nothing; their lines have names
    for trace in traces:
        trace["showlegend"] = trace["name"] not in seen
        seen.add(trace["name"])
    return Figure(
        title=f"{_step(timeline)} of rank {timeline.rank} along time (ms)",
        data=tuple(traces),
        layout=layout,
        summary=_summary(timeline),
        numbers=_numbers(timeline),
    )


def _label(account: str) -> str:
    return f"idle: {account}" if lane_of(account) == "idle" else account


def _step(timeline: StepTimeline) -> str:
    return "The recording" if timeline.step is None else f"Step {timeline.step}"


def _line(segments: list[TimelineSegment], row: int, timeline: StepTimeline) -> Data:
    """Bars whose height is how full they are, so that area is time; none narrower than a pixel."""
    owner = ACCOUNTS[segments[0].account].owner
    pixel = timeline.step_seconds / PIXELS
    wide = [max(segment.end_seconds - segment.start_seconds, pixel) for segment in segments]
    tall = [max(_TALL * s.seconds / w, _LOW) for s, w in zip(segments, wide, strict=True)]
    return {
        "type": "bar",
        "orientation": "h",
        "name": owner,
        "legendgroup": owner,
        "y": [row] * len(segments),
        "width": [round(size, 3) for size in tall],
        "offset": [round(_TALL / 2 - size, 3) for size in tall],
        "base": [_rounded(s.start_seconds) for s in segments],
        "x": [_rounded(size) for size in wide],
        "marker": {"color": OWNERS[owner], "line": {"width": 0}},
        "customdata": [_hover(segment) for segment in segments],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _rounded(seconds: float) -> float:
    """Milliseconds to the nanosecond, the resolution of a trace."""
    return round(_MS * seconds, 6)


def _hover(segment: TimelineSegment) -> str:
    """Escaped for Plotly, which reads tags: kernel names contain angle brackets."""
    at, span = segment.start_seconds, segment.end_seconds - segment.start_seconds
    lines = [f"{segment.account}: {format_seconds(segment.seconds)} at {format_seconds(at)}"]
    if segment.pieces > 1:
        filled = format_share(segment.seconds / span)
        lines.append(f"{segment.pieces:,} pieces, {filled} of {format_seconds(span)}")
    if segment.name:
        longest = f", {format_seconds(segment.name_seconds)}" if segment.pieces > 1 else ""
        lines += textwrap.wrap(_short(segment.name, _NAME) + longest, _NAME_LINE)
    return "<br>".join(escape(line, quote=False) for line in lines)


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 3] + "..."


def _summary(timeline: StepTimeline) -> str:
    whole = timeline.step_seconds
    parts = sorted(timeline.accounts.items(), key=lambda item: -item[1])
    text = ", ".join(f"{_label(name)} {format_share(s / whole)}" for name, s in parts[:4])
    which = "" if timeline.steps == 1 else f", the median of {timeline.steps:,},"
    merged = format_seconds(timeline.merged_seconds)
    return (
        f"{_step(timeline)}{which} took {format_seconds(whole)} as recorded: {text}. Pieces shorter "
        f"than {merged} are merged with similar ones nearby: the height of a bar is the share of it "
        "that is filled. Communication hidden by computation is not drawn."
    )


def _numbers(timeline: StepTimeline) -> Table:
    whole = timeline.step_seconds
    rows = [
        (_label(name), f"{_MS * s:,.3f}", format_share(s / whole), _longest(timeline, name))
        for name, s in timeline.accounts.items()
    ]
    rows.append(("total", f"{_MS * whole:,.3f}", format_share(1.0), ""))
    return Table(
        title=f"{_step(timeline)} of rank {timeline.rank} by account",
        columns=columns("account", "ms", "share", "longest", right="ms,share", wrap="longest"),
        rows=tuple(rows),
        strong=frozenset({len(rows) - 1}),
    )


def _longest(timeline: StepTimeline, account: str) -> str:
    mine = (segment for segment in timeline.segments if segment.account == account)
    longest = max(mine, key=lambda segment: segment.name_seconds)
    return (
        f"{_short(longest.name, 60)}, {format_seconds(longest.name_seconds)}"
        if longest.name
        else ""
    )
