"""Predicted against measured steps, run by run: those outside of the predicted range stand out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from computeflow.units import format_seconds, format_share
from computeflow.views.axes import log_axis
from computeflow.views.figures import ACCENT, GREY, SECOND, Data, Figure, base_layout, value_axis
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.prediction.validation import Validation
    from computeflow.prediction.validation.error_summary import ValidatedRow

_MISSES = 20
_TICKS = (0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)


def is_inside(row: ValidatedRow) -> bool:
    return row.low_seconds <= row.measured_seconds <= row.high_seconds


def accuracy_figure(validation: Validation) -> Figure:
    """Predicted over measured time of every run, by how long its step was; 1 is exact."""
    inside = [row for row in validation.rows if is_inside(row)]
    outside = [row for row in validation.rows if not is_inside(row)]
    layout = base_layout(1, 360)
    layout["xaxis"] = value_axis("measured step (s)") | log_axis(
        [row.measured_seconds for row in validation.rows] or [1.0]
    )
    layout["yaxis"] |= {
        "title": {"text": "predicted / measured"},
        "type": "log",
        "tickvals": list(_TICKS),
        "ticktext": [f"{tick:g}" for tick in _TICKS],
        "showgrid": True,
        "gridcolor": layout["xaxis"]["gridcolor"],
    }
    layout["shapes"] = [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": 1,
            "y1": 1,
            "line": {"width": 1, "color": GREY},
        }
    ]
    share = len(inside) / max(len(validation.rows), 1)
    return Figure(
        title=f"{len(validation.rows):,} measured runs: predicted over measured step time (ratio)",
        data=(
            _points(inside, "inside the predicted range", ACCENT, "circle"),
            _points(outside, "outside it", SECOND, "x"),
        ),
        layout=layout,
        summary="Each point is a run; above 1 the prediction is too slow, below 1 too fast. "
        f"{len(outside):,} of {len(validation.rows):,} runs ({format_share(1 - share)}) lie outside "
        "the predicted range; the target is 80 % inside.",
        numbers=misses_table(validation),
    )


def misses_table(validation: Validation) -> Table:
    """The runs that were predicted worst, whatever the reason."""
    worst = sorted(
        (row for row in validation.rows if not is_inside(row)),
        key=lambda row: -max(_ratio(row), 1 / _ratio(row)),
    )
    return Table(
        title=f"The {min(_MISSES, len(worst))} worst of {len(worst):,} runs outside their range",
        columns=columns(
            "run",
            "source",
            "device",
            "stack",
            "measured",
            "predicted",
            "range",
            "ratio",
            right="measured,predicted,range,ratio",
            wrap="source",
        ),
        rows=tuple(
            (
                row.row_id,
                row.source,
                row.device,
                row.stack,
                format_seconds(row.measured_seconds),
                format_seconds(row.predicted_seconds),
                f"{format_seconds(row.low_seconds)} to {format_seconds(row.high_seconds)}",
                f"{_ratio(row):.2f}",
            )
            for row in worst[:_MISSES]
        ),
    )


def _ratio(row: ValidatedRow) -> float:
    return row.predicted_seconds / row.measured_seconds


def _points(rows: Sequence[ValidatedRow], name: str, colour: str, symbol: str) -> Data:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [row.measured_seconds for row in rows],
        "y": [_ratio(row) for row in rows],
        "text": [f"{row.source}, {row.device}, {row.stack}" for row in rows],
        "marker": {"size": 5, "color": colour, "symbol": symbol, "opacity": 0.7},
        "hovertemplate": "%{text}<br>measured %{x:.3g} s, ratio %{y:.2f}<extra></extra>",
    }
