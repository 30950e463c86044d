"""`front_figure`: time against cost by number of GPUs, and the numbers that none other beats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from computeflow.units import format_usd
from computeflow.views.axes import log_axis
from computeflow.views.figures import ACCENT, GREY, Data, Figure, base_layout, value_axis, wrapped
from computeflow.views.plans import front_table, layout_text

if TYPE_CHECKING:
    from computeflow.views.plans import FrontRow

_MAX_LAYOUTS = 6
"""Layouts that can be written beside their points without touching."""
_LABEL_SHARE = 0.17
"""Share of the axis that a layout of 24 characters takes on a page of 900 pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Point:
    gpus: int
    layout: str
    time: float
    cost: float


def front_headline(rows: Sequence[FrontRow]) -> str:
    return _fastest_and_cheapest(*_points(rows))


def front_figure(rows: Sequence[FrontRow], infeasible: Sequence[int] = ()) -> Figure:
    """Days and USD, or step and GPU time where unknown; `infeasible` numbers of GPUs are noted."""
    points, time_unit, cost_unit = _points(rows)
    front = _front(points)
    rest = [point for point in points if point not in front]
    traces = [_labelled(front, "on the Pareto front", ACCENT)]
    if rest:
        beaten = _labelled(rest, "another count is both faster and cheaper", GREY)
        beaten["marker"] |= {"symbol": "circle-open", "line": {"width": 2}}
        traces.append(beaten | {"mode": "markers+text"})
    axis = log_axis([point.time for point in points])
    if len(points) <= _MAX_LAYOUTS:
        traces.append(_layout_labels(points, axis["range"]))
    layout = base_layout(1, 320)
    layout["xaxis"] = value_axis(time_unit) | axis
    layout["yaxis"] |= {
        "title": {"text": cost_unit},
        "range": [0, 1.2 * max(point.cost for point in points)],
        "showgrid": True,
        "gridcolor": layout["xaxis"]["gridcolor"],
        "nticks": 6,
    }
    return Figure(
        title=f"Time against cost by number of devices ({time_unit}, {cost_unit})",
        data=tuple(traces),
        layout=layout,
        summary="Each point is labelled with its number of devices. "
        + _fastest_and_cheapest(points, time_unit, cost_unit),
        numbers=front_table(rows, infeasible),
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _points(rows: Sequence[FrontRow]) -> tuple[list[_Point], str, str]:
    """The rows with time and cost, and the units of both: days and USD where they are known."""
    times, time_unit = _known(row.days for row in rows), "days"
    if len(times) < len(rows):
        times, time_unit = [row.plan.prediction.step_seconds for row in rows], "s a step"
    costs, cost_unit = _known(row.usd for row in rows), "USD"
    if len(costs) < len(rows):
        costs = [row.gpus * time for row, time in zip(rows, times, strict=True)]
        cost_unit = f"GPU-{time_unit}"
    points = [
        _Point(gpus=row.gpus, layout=layout_text(row.plan.layout), time=time, cost=cost)
        for row, time, cost in zip(rows, times, costs, strict=True)
    ]
    return points, time_unit, cost_unit


def _front(points: Sequence[_Point]) -> list[_Point]:
    """Fastest first, each cheaper than all that are faster."""
    front: list[_Point] = []
    for point in sorted(points, key=lambda point: (point.time, point.cost)):
        if not front or point.cost < front[-1].cost:
            front.append(point)
    return front


def _labelled(points: Sequence[_Point], name: str, colour: str) -> Data:
    return {
        "type": "scatter",
        "mode": "lines+markers+text",
        "name": name,
        "cliponaxis": False,
        "x": [point.time for point in points],
        "y": [point.cost for point in points],
        "text": [f"{point.gpus:,}" for point in points],
        "textposition": "top center",
        "marker": {"size": 10, "color": colour},
        "line": {"width": 2, "color": colour},
        "customdata": [f"{point.gpus:,} devices: {point.layout}" for point in points],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _layout_labels(points: Sequence[_Point], ends: Sequence[float]) -> Data:
    """Under points that are far enough from the one before on an axis with these `ends`. The report
    leaves this trace, by its `uid`, out of narrow screens.
    """
    room = _LABEL_SHARE * (ends[1] - ends[0])
    shown: list[_Point] = []
    for point in sorted(points, key=lambda point: point.time):
        if not shown or math.log10(point.time / shown[-1].time) >= room:
            shown.append(point)
    return {
        "type": "scatter",
        "mode": "text",
        "uid": "wide",
        "showlegend": False,
        "hoverinfo": "skip",
        "x": [point.time for point in shown],
        "y": [point.cost for point in shown],
        "text": ["<br><br>" + wrapped(point.layout, 16) for point in shown],
        "textposition": "bottom center",
        "textfont": {"size": 11},
        "cliponaxis": False,
    }


def _fastest_and_cheapest(points: Sequence[_Point], time_unit: str, cost_unit: str) -> str:
    def words(point: _Point) -> str:
        cost = f"{point.cost:,.0f} {cost_unit}"
        if cost_unit == "USD":
            cost = format_usd(point.cost)
        return f"{point.gpus:,} devices ({point.time:,.3g} {time_unit}, {cost})"

    fast = min(points, key=lambda point: point.time)
    cheap = min(points, key=lambda point: point.cost)
    if fast == cheap:
        return f"Fastest and cheapest: {words(fast)}."
    return f"Fastest: {words(fast)}. Cheapest: {words(cheap)}."
