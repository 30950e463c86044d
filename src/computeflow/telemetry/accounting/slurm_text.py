"""Slurm's text output: `sacct -P`, `scontrol show job`, `scontrol show node`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from computeflow.errors import InputError
from computeflow.files.limits import NODES
from computeflow.telemetry.accounting.jobs import AttemptRows
from computeflow.telemetry.accounting.scheduler_values import (
    NAN,
    duration_seconds,
    gpus_of,
    outcome_of,
    parse_joules,
    state_of,
    unix_seconds,
)
from computeflow.telemetry.lines import check_columns, read_lines

_TRES = ("alloctres", "tres", "reqtres", "allocgres", "reqgres")
_READ = (
    "jobid",
    "jobidraw",
    "state",
    "start",
    "end",
    "elapsed",
    "elapsedraw",
    "submit",
    "eligible",
    *_TRES,
    "consumedenergy",
    "consumedenergyraw",
    "user",
    "account",
    "jobname",
    "nodelist",
)
_FORMAT = (
    "sacct -a -D -P --format=JobID,JobName,User,Account,State,Submit,Start,End,AllocTRES,NodeList"
)
_PAIR = re.compile(r"(?:^|\s)([A-Z][\w:/]*)=(\S*)")
_REASON = re.compile(r"(?:^|\s)Reason=(.{0,1000}?)\[([^\[\]@]{0,64})@([^\[\]]{1,64})\]")
_RECORD = re.compile(r"\s*(JobId|NodeName)=\S")
_FLAGS = re.compile(r"[+*$@~#%^!-]+")
_USER = re.compile(r"(.*?)\(\d+\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node as `scontrol show node` lists it."""

    name: str
    gpus: float
    state: str
    reason: str = ""
    since: float | None = None
    """When the reason was set."""

    @property
    def out(self) -> bool:
        """Whether it takes no jobs: down, drained, failed, in maintenance."""
        words = set(_FLAGS.split(self.state.upper()))
        off = words & {"DOWN", "DRAIN", "DRAINED", "FAIL", "FAILING", "MAINT", "POWERED_DOWN"}
        return bool(off) and not words & {"ALLOCATED", "MIXED", "ALLOC", "MIX", "COMPLETING"}


def is_sacct(head: str) -> bool:
    line = head.split("\n", 1)[0]
    columns = line.lower().split("|")
    return "|" in line and "state" in columns and ("jobid" in columns or "jobidraw" in columns)


def read_sacct(path: Path, rows: AttemptRows) -> None:
    """Read `-P` or `-p` output with JobID, State, Start, End (or Elapsed) and a TRES column."""
    columns: _Columns | None = None
    for line in read_lines(path, rows.left_out):
        if line.startswith("JobID") and is_sacct(line):
            columns = _Columns(line, path)
        elif columns is None:
            if is_sacct(line):
                columns = _Columns(line, path)
            elif line.strip():
                rows.broken += 1
        elif line:
            _sacct_line(line.split("|"), columns, rows)


_MAX_LINES = 200
"""Lines of a record of scontrol."""


class _Columns:
    """Index of each field in a line of sacct; -1 where it is absent."""

    def __init__(self, line: str, path: Path) -> None:
        names = line.lower().split("|")
        self.width = len(names)
        check_columns(names, _READ, path)
        indices = {name: index for index, name in enumerate(names) if name}
        self.job = indices.get("jobid", indices.get("jobidraw", -1))
        self.state = indices["state"]
        self.start, self.end = indices.get("start", -1), indices.get("end", -1)
        self.elapsed = indices.get("elapsedraw", indices.get("elapsed", -1))
        self.submit = indices.get("submit", -1)
        self.eligible = indices.get("eligible", -1)
        self.tres = [indices[name] for name in _TRES if name in indices]
        self.joules = indices.get("consumedenergyraw", indices.get("consumedenergy", -1))
        self.user, self.team = indices.get("user", -1), indices.get("account", -1)
        self.name, self.nodes = indices.get("jobname", -1), indices.get("nodelist", -1)
        if self.start < 0 or (self.end < 0 and self.elapsed < 0) or not self.tres:
            raise InputError(f"{path}: sacct without times or GPUs; export it with: {_FORMAT}")


def _sacct_line(cells: list[str], columns: _Columns, rows: AttemptRows) -> None:
    broken = len(cells) != columns.width
    cells = [*cells, ""]  # at -1: the value of an absent field
    if broken or not (job := cells[columns.job]):
        rows.broken += 1
        return
    state = state_of(cells[columns.state])
    start = unix_seconds(cells[columns.start])
    end, took = unix_seconds(cells[columns.end]), duration_seconds(cells[columns.elapsed])
    if outcome_of(state) == "running":
        end = NAN
    elif math.isnan(end):
        end = start + took
    joules = parse_joules(cells[columns.joules])
    base, dot, step = job.partition(".")
    if dot:
        rows.step(base, outcome_of(state), start, end, joules, own=step[:1].isdigit())
        return
    gpus = next((g for index in columns.tres if (g := gpus_of(cells[index])) is not None), 0.0)
    rows.zoneless = True
    rows.add(
        base,
        state=state,
        gpus=gpus,
        start=start,
        end=end,
        took=took,
        joules=joules,
        submit=unix_seconds(cells[columns.submit]),
        eligible=unix_seconds(cells[columns.eligible]),
        user=cells[columns.user],
        team=cells[columns.team],
        name=cells[columns.name],
        nodes=without_none(cells[columns.nodes]),
    )


def check_nodes(count: int, path: Path) -> None:
    if count > NODES:
        raise InputError(f"{path}: more than {NODES:,} nodes")


def without_none(text: str) -> str:
    return "" if text in ("None assigned", "(null)", "None") else text


def is_scontrol(head: str) -> bool:
    return _RECORD.match(head) is not None


def read_scontrol(path: Path, rows: AttemptRows) -> list[NodeState]:
    """Read `show job` and `show node`, on several lines or one (`-o`), in any mixture."""
    nodes = []
    for record in _records(path, rows.left_out):
        fields: dict[str, str] = {}
        for key, value in _PAIR.findall(record):
            fields.setdefault(key, value)
        if "NodeName" in fields:
            nodes.append(_node(fields, record))
            check_nodes(len(nodes), path)
        else:
            _job(fields, rows)
    return nodes


def _records(path: Path, left_out: list[str]) -> Iterator[str]:
    """The text of each job or node; one begins where a line begins with its name."""
    parts: list[str] = []
    for line in read_lines(path, left_out):
        named = is_scontrol(line)
        if parts and named and not line[:1].isspace():
            yield "\n".join(parts)
            parts = []
        if line.strip() and (named if not parts else len(parts) < _MAX_LINES):
            parts.append(line[:4096])
    if parts:
        yield "\n".join(parts)


def _job(fields: dict[str, str], rows: AttemptRows) -> None:
    job = fields.get("JobId", "")
    if "ArrayJobId" in fields and fields.get("ArrayTaskId", "").isdigit():
        job = f"{fields['ArrayJobId']}_{fields['ArrayTaskId']}"
    user = _USER.fullmatch(fields.get("UserId", ""))
    tres = (fields.get(name, "") for name in ("AllocTRES", "TRES", "ReqTRES"))
    rows.zoneless = True
    state = state_of(fields.get("JobState", ""))
    is_running = outcome_of(state) == "running"  # its end is only its time limit
    rows.add(
        job,
        state=state,
        gpus=next((g for text in tres if (g := gpus_of(text)) is not None), 0.0),
        start=unix_seconds(fields.get("StartTime", "")),
        end=NAN if is_running else unix_seconds(fields.get("EndTime", "")),
        submit=unix_seconds(fields.get("SubmitTime", "")),
        eligible=unix_seconds(fields.get("EligibleTime", "")),
        took=duration_seconds(fields.get("RunTime", "")),
        user=user[1] if user else fields.get("UserId", ""),
        team=fields.get("Account", "").replace("(null)", ""),
        name=fields.get("JobName", ""),
        nodes=without_none(fields.get("NodeList", "")),
    )


def _node(fields: dict[str, str], record: str) -> NodeState:
    reason = _REASON.search(record)
    since = unix_seconds(reason[3]) if reason else NAN
    gpus = gpus_of(fields.get("CfgTRES", ""))
    if gpus is None:  # sites that do not account for GPUs
        gpus = gpus_of(fields.get("Gres", "")) or 0.0
    return NodeState(
        name=fields["NodeName"],
        gpus=gpus,
        state=fields.get("State", "UNKNOWN"),
        reason=reason[1].rstrip() if reason else "",
        since=None if math.isnan(since) else since,
    )
