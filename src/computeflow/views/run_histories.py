"""The history of recorded runs, as a table."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import PurePath

from computeflow.auditing.run_history import RunHistory, RunRow
from computeflow.economics import GpuPrice
from computeflow.units import HOUR_SECONDS, format_count, format_seconds, format_share, format_usd
from computeflow.views.tables import Table, columns, left_out_notes

_NAME_CHARACTERS = 28


def runs_headline(history: RunHistory) -> str:
    rows = history.rows
    text = f"{format_count(len(rows), 'run')}, {_time_text(rows)}"
    if all(row.usd is not None for row in rows):
        text += f", {format_usd(sum(row.usd or 0.0 for row in rows))}"
    latest = rows[0]
    if latest.step_ratio is not None and history.against is not None:
        change = 100 * (latest.step_ratio - 1)
        text += f"; the latest step is {change:+.1f} % against {_called(history.against)}"
    return f"{text}."


def _time_text(rows: Sequence[RunRow]) -> str:
    """`12.5 GPU-hours`, `346 rank-s` where the host computed, or both."""
    on_host = sum(row.gpu_hours for row in rows if row.device == "cpu")
    hours = [row.gpu_hours for row in rows if row.device != "cpu"]
    texts = [f"{sum(hours):,.1f} GPU-hours"] if hours else []
    if len(hours) < len(rows):
        seconds = on_host * HOUR_SECONDS
        unit, size = ("rank-hours", HOUR_SECONDS) if seconds > 1e6 else ("rank-s", 1.0)
        texts.append(f"{seconds / size:,.0f} {unit}")
    return " and ".join(texts)


def runs_table(title: str, history: RunHistory, price: GpuPrice | None) -> Table:
    compared, priced = history.against is not None, price is not None
    heads = ["run", "start (UTC)", "ranks", "steps", "step", "MFU", "goodput", "again"]
    heads += ["against"] * compared + ["USD"] * priced
    of = "rank" if all(row.device == "cpu" for row in history.rows) else "GPU"
    notes = [
        f"goodput: share of all {of}-seconds in steps that were kept; again: restarts",
        *left_out_notes(history.left_out),
    ]
    if history.against is not None:
        notes.insert(0, f"against: median step compared with {_called(history.against)}")
    if price is not None and price.note:
        notes.append(price.note)
    return Table(
        title=title,
        columns=columns(*heads, wrap="run"),
        rows=tuple(_row(row, compared=compared, priced=priced) for row in history.rows),
        notes=tuple(notes),
    )


def _called(row: RunRow) -> str:
    """The name of its folder, by which a run is found."""
    return PurePath(row.folder).name[:_NAME_CHARACTERS]


def _row(row: RunRow, *, compared: bool, priced: bool) -> tuple[str, ...]:
    start = datetime.datetime.fromtimestamp(row.start, tz=datetime.UTC)
    change = "-" if row.step_ratio is None else f"{100 * (row.step_ratio - 1):+.1f} %"
    usd = "-" if row.usd is None else f"{row.usd:,.2f}"
    return (
        _called(row),
        f"{start:%m-%d %H:%M}",
        f"{row.ranks:,}",
        f"{row.steps:,}",
        "-" if row.step_seconds is None else format_seconds(row.step_seconds),
        format_share(row.mfu),
        format_share(row.goodput),
        f"{row.restarts:,}",
        *([change] if compared else []),
        *([usd] if priced else []),
    )
