"""CSV exports of other schedulers, by the names of their columns."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

from computeflow.errors import InputError
from computeflow.files.limits import LINE_BYTES
from computeflow.telemetry.accounting.jobs import AttemptRows
from computeflow.telemetry.accounting.scheduler_values import (
    NAN,
    duration_seconds,
    parse_joules,
    state_of,
    unix_seconds,
)
from computeflow.telemetry.lines import check_columns, read_lines

_NO_LETTER = re.compile(r"[^a-z]")
_NAMES = {
    "job": "job jobid id jobname",
    "user": "user username owner submitter userid",
    "team": "team account project group groupname vc uservc queue department organization",
    "name": "jobname name",
    "submit": "submit submittime submitted submittedat submission submissiontime created createdat "
    "creationtime arrival arrivaltime",
    "start": "start starttime started startedat begin begintime scheduledtime",
    "end": "end endtime ended endedat finish finishtime finished finishedat completed completedat "
    "stop stoptime deletiontime",
    "duration": "duration elapsed elapsedraw runtime walltime durationseconds elapsedseconds",
    "gpus": "gpus ngpus numgpus gpunum gpucount numgpu gpu gpusallocated allocgpus gpusrequested "
    "requestedgpus",
    "nodes": "nodes nodelist node hosts host hostname hostlist nodename",
    "state": "state status jobstate jobstatus result finalstatus",
    "joules": "consumedenergy energy energyjoules joules",
}
"""Spellings of a column, without case, spaces, dashes and underscores, in order of preference."""


def _delimiter(line: str) -> str:
    return max(",;\t", key=line.count)


def _columns(line: str) -> dict[str, int]:
    indices: dict[str, int] = {}
    for index, cell in enumerate(line.split(_delimiter(line))):
        indices.setdefault(_NO_LETTER.sub("", cell.lower()), index)
    columns: dict[str, int] = {}
    for column, spellings in _NAMES.items():
        present = [indices[word] for word in spellings.split() if word in indices]
        if present and present[0] not in columns.values():
            columns[column] = present[0]
    return columns


def is_export(head: str) -> bool:
    """Whether the header has a job, its GPUs, its start (or submission), and its end or duration."""
    line = head.split("\n", 1)[0].strip()
    if not line or line[0] in "{[<#" or len(line) > 4096:
        return False
    columns = _columns(line)
    began, ended = {"start", "submit"} & columns.keys(), {"end", "duration"} & columns.keys()
    return {"job", "gpus"} <= columns.keys() and bool(began) and bool(ended)


def read_export(path: Path, rows: AttemptRows) -> list[str]:
    """Add the jobs of a file; returns notes on what it does not state."""
    lines = read_lines(path, rows.left_out)
    header = next((line for line in lines if line.strip("\ufeff \t")), "")
    columns = _columns(header)
    cells = [_NO_LETTER.sub("", cell.lower()) for cell in header.split(_delimiter(header))]
    check_columns(cells, {cells[index] for index in columns.values()}, path)
    csv.field_size_limit(max(csv.field_size_limit(), LINE_BYTES))
    try:
        for cells in csv.reader(lines, delimiter=_delimiter(header)):
            if len(cells) > max(columns.values()):
                _row(cells, columns, rows)
            elif cells:
                rows.broken += 1
    except csv.Error as error:
        raise InputError(f"{path}: {error}") from None
    notes = []
    if "state" not in columns:
        notes.append(f"{path.name} has no column with the jobs' states: what was lost is unknown")
    if "start" not in columns:
        notes.append(f"{path.name} has no start times: when jobs had their GPUs is unknown")
    return notes


def _row(cells: list[str], columns: dict[str, int], rows: AttemptRows) -> None:
    def cell(column: str) -> str:
        return cells[columns[column]].strip() if column in columns else ""

    gpus = duration_seconds(cell("gpus") or "0")  # a plain number from zero up
    if not cell("job") or math.isnan(gpus):
        rows.broken += 1
        return
    state = state_of(cell("state"))
    start, end = unix_seconds(cell("start")), unix_seconds(cell("end"))
    took = duration_seconds(cell("duration")) if "duration" in columns else NAN
    if math.isnan(end):
        end = start + took
    rows.zoneless = True
    rows.add(
        cell("job"),
        state=state,
        gpus=gpus,
        start=start,
        end=end,
        took=took,
        submit=unix_seconds(cell("submit")),
        joules=parse_joules(cell("joules")),
        user=cell("user"),
        team=cell("team"),
        name=cell("name"),
        nodes=cell("nodes"),
    )
