"""Tables of outages, by the names of their columns: `read_outages`.

Two shapes: a row for each outage (node, start, end), or one for each event (node, time, start or end).
Ends are matched to starts of the same node and cause, the first to the first.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

from computeflow.errors import InputError
from computeflow.files.limits import LINE_BYTES
from computeflow.telemetry.accounting.scheduler_values import unix_seconds
from computeflow.telemetry.lines import check_columns, read_lines
from computeflow.units import DAY_SECONDS, HOUR_SECONDS, format_count

_NO_LETTER = re.compile(r"[^a-z]")
_NAMES = {
    "node": "node nodename nodeid host hostname server machine",
    "time": "time eventtime timestamp date at",
    "event": "event eventtype",
    "start": "start starttime faultstart begin from down",
    "end": "end endtime faultend until repaired up",
    "cause": "class cause category reason component type",
}
"""Spellings of a column, without case, spaces, dashes and underscores, in order of preference."""
_UNITS = {"seconds": 1.0, "hours": HOUR_SECONDS, "days": DAY_SECONDS}
"""Ends of the names of columns whose times count from the table's own start."""
_STARTS, _ENDS = ("start", "begin", "down"), ("end", "repair", "up", "resolve")
MAX_OUTAGES = 1_000_000


@dataclass(frozen=True, slots=True)
class OutageRow:
    node: str
    cause: str
    start: float
    end: float
    """NaN where the node was not back."""


@dataclass(slots=True)
class OutageRows:
    rows: list[OutageRow]
    counted: bool
    """Whether times count from the table's own start, not from 1970."""
    left_out: list[str]


@dataclass(frozen=True, slots=True)
class _Column:
    index: int
    name: str
    unit: float | None
    """Seconds in one, where the times count from the table's own start."""

    def seconds(self, cells: list[str]) -> float:
        text = cells[self.index].strip()
        if self.unit is None:
            return unix_seconds(text)
        try:
            value = float(text) * self.unit
        except ValueError:
            return math.nan
        return value if 0 <= value < 1e11 else math.nan


def _columns(line: str) -> dict[str, _Column]:
    columns: dict[str, _Column] = {}
    for index, cell in enumerate(line.split(",")):
        word, unit = _NO_LETTER.sub("", cell.lower()), None
        for ending, seconds in _UNITS.items():
            if word.endswith(ending) and word != ending:
                word, unit = word.removesuffix(ending), seconds
        column = next((name for name, words in _NAMES.items() if word in words.split()), None)
        if column is not None:
            columns.setdefault(column, _Column(index, _NO_LETTER.sub("", cell.lower()), unit))
    return columns


def is_outage_table(head: str) -> bool:
    """Whether the header has a node, a cause, and start and end (or time and event)."""
    line = head.split("\n", 1)[0].strip()
    if not line or line[0] in "{[<#" or len(line) > 4096:
        return False
    found = _columns(line).keys()
    return {"node", "cause"} <= found and ({"time", "event"} <= found or {"start", "end"} <= found)


def read_outages(path: Path) -> OutageRows:
    left_out: list[str] = []
    lines = read_lines(path, left_out)
    header = next((line for line in lines if line.strip("\ufeff \t")), "").lstrip("\ufeff")
    columns = _columns(header)
    names = [_NO_LETTER.sub("", cell.lower()) for cell in header.split(",")]
    check_columns(names, {column.name for column in columns.values()}, path)
    csv.field_size_limit(max(csv.field_size_limit(), LINE_BYTES))
    table, broken = list[list[str]](), 0
    try:
        for cells in csv.reader(lines):
            if len(cells) > max(column.index for column in columns.values()):
                table.append(cells)
            elif cells:
                broken += 1
            if len(table) > 2 * MAX_OUTAGES:
                raise InputError(f"{path}: more than {2 * MAX_OUTAGES:,} rows")
    except csv.Error as error:
        raise InputError(f"{path}: {error}") from None
    by_event = "event" in columns and "time" in columns
    rows, skipped = (_by_event if by_event else _by_outage)(table, columns)
    if broken + skipped:
        left_out.append(f"{path}: {format_count(broken + skipped, 'row')} of no outage")
    if not rows:
        raise InputError(f"{path}: no outage with a node and a start")
    timed = columns["time"] if by_event else columns["start"]
    return OutageRows(rows, timed.unit is not None, left_out)


def _by_outage(table: list[list[str]], columns: dict[str, _Column]) -> tuple[list[OutageRow], int]:
    rows, skipped = [], 0
    for cells in table:
        start, end = columns["start"].seconds(cells), columns["end"].seconds(cells)
        node = cells[columns["node"].index].strip()
        if not node or math.isnan(start) or end < start:
            skipped += 1
        else:
            rows.append(OutageRow(node, cells[columns["cause"].index].strip(), start, end))
    return rows, skipped


def _by_event(table: list[list[str]], columns: dict[str, _Column]) -> tuple[list[OutageRow], int]:
    """Rows of one fault agree in all cells but the time and the event."""
    apart = {columns["time"].index, columns["event"].index}
    events, skipped = [], 0
    for cells in table:
        time, word = columns["time"].seconds(cells), cells[columns["event"].index].lower()
        begins = any(start in word for start in _STARTS)
        known = begins or any(end in word for end in _ENDS)
        if not known or math.isnan(time) or not cells[columns["node"].index].strip():
            skipped += 1
            continue
        key = tuple(cell for index, cell in enumerate(cells) if index not in apart)
        events.append((time, not begins, key, cells))
    open_starts: dict[tuple[str, ...], list[float]] = {}
    rows = []
    for time, ends, key, cells in sorted(events, key=lambda event: event[:2]):
        if not ends:
            open_starts.setdefault(key, []).append(time)
        elif open_starts.get(key):
            rows.append(_row(cells, columns, open_starts[key].pop(0), time))
        else:
            skipped += 1
    cells_of = {key: cells for _, _, key, cells in events}
    rows += [
        _row(cells_of[key], columns, start, math.nan)
        for key, starts in open_starts.items()
        for start in starts
    ]
    return rows, skipped


def _row(cells: list[str], columns: dict[str, _Column], start: float, end: float) -> OutageRow:
    node, cause = (cells[columns[name].index].strip() for name in ("node", "cause"))
    return OutageRow(node, cause, start, end)
