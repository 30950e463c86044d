"""`sacct --json` and `scontrol show nodes --json`, one job or node at a time.

The shapes of the data parsers v0.0.37 to v0.0.43 (Slurm 21.08 to 25.05): a number is a number or
`{"set", "infinite", "number"}`, a state a word or a list of words.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from computeflow.errors import InputError
from computeflow.files.limits import RECORD_BYTES
from computeflow.telemetry.accounting.jobs import AttemptRows
from computeflow.telemetry.accounting.scheduler_values import (
    NAN,
    gpus_of,
    moment,
    outcome_of,
    parse_joules,
    state_of,
)
from computeflow.telemetry.accounting.slurm_text import NodeState, check_nodes, without_none
from computeflow.telemetry.opening import open_recording

_PIECE = 1 << 20
_LIST = re.compile(r'"(jobs|nodes)"\s*:\s*\[')
_SLURM = re.compile(r'"(?:job_id|tres|[sS]lurm|hostname)"\s*:')
_SPACE = re.compile(r"[\s,]*")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; one that repeats a key is only marked as such, as it cannot be relied on."""
    merged = dict(pairs)
    return merged if len(merged) == len(pairs) else {_REPEATED_KEY: True}


_REPEATED_KEY = ""
_PARSER = json.JSONDecoder(object_pairs_hook=_pairs)


def is_slurm_json(head: str) -> bool:
    if head.lstrip()[:1] != "{":
        return False
    return _LIST.search(head) is not None and _SLURM.search(head) is not None


def read_slurm_json(path: Path, rows: AttemptRows) -> list[NodeState]:
    nodes = []
    for kind, data in _objects(path, rows.left_out):
        if _repeats_a_key(data):
            rows.broken += 1
        elif kind == "nodes" and (node := _node(data)) is not None:
            nodes.append(node)
            check_nodes(len(nodes), path)
        elif kind == "jobs":
            _job(data, rows)
    return nodes


def _objects(path: Path, left_out: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of the lists `jobs` and `nodes`; at most twice the text of the longest is
    held.
    """
    with open_recording(path) as raw:
        file = io.TextIOWrapper(raw, "utf-8", "replace")
        text, kind, count = "", "", 0
        while more := file.read(
            max(_PIECE, len(text))
        ):  # a long object is not parsed again and again
            text += more
            found, kind, at = _whole(text, kind)
            yield from found
            count += len(found)
            text = text[at:]
            if len(text) > RECORD_BYTES:
                break
        if kind and not count:
            raise InputError(f"{path}: cannot be read as Slurm's JSON")
        if kind or raw.broken:
            why = raw.broken or f"Slurm's JSON cannot be read after {count:,} {kind}"
            left_out.append(f"{path}: {why}; what came before is kept")


def _whole(text: str, kind: str) -> tuple[list[tuple[str, dict[str, Any]]], str, int]:
    """The objects that are whole, the list in which the text ends, and where the rest begins."""
    whole: list[tuple[str, dict[str, Any]]] = []
    at = 0
    while True:
        if not kind:
            found = _LIST.search(text, at)
            if found is None:
                return whole, "", max(at, len(text) - 64)
            kind, at = found[1], found.end()
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        if text.startswith("]", at):
            kind = ""
            continue
        try:
            data, at = _PARSER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return whole, kind, at
        whole.append((kind, data if isinstance(data, dict) else {}))


def _job(data: dict[str, Any], rows: AttemptRows) -> None:
    time, array = _inner(data, "time"), _inner(data, "array")
    job = str(data.get("job_id", ""))
    task = _number(array.get("task_id"))
    if not math.isnan(task) and _number(array.get("job_id")) > 0:
        job = f"{_number(array['job_id']):.0f}_{task:.0f}"
    if not job:
        rows.broken += 1
        return
    steps = [step for step in _list(data.get("steps")) if isinstance(step, dict)]
    state = _state(data.get("state"))
    rows.add(
        job,
        state=state,
        gpus=_gpus(_inner(data, "tres")),
        start=_moment(time.get("start")),
        end=NAN if outcome_of(state) == "running" else _moment(time.get("end")),
        submit=_moment(time.get("submission")),
        eligible=_moment(time.get("eligible")),
        took=_number(time.get("elapsed")),
        user=_text(data.get("user")) or _text(_inner(data, "association").get("user")),
        team=_text(data.get("account")),
        name=_text(data.get("name")),
        nodes=without_none(_text(data.get("nodes"))),
    )
    for step in steps:
        _step(job, step, rows)


def _step(job: str, data: dict[str, Any], rows: AttemptRows) -> None:
    time = _inner(data, "time")
    label = str(_inner(data, "step").get("id", "")).rpartition(".")[2]  # 0, "0", "12.0", "batch"
    energy = _number(_inner(_inner(data, "statistics"), "energy").get("consumed"))
    rows.step(
        job,
        outcome_of(_state(data.get("state"))),
        _moment(time.get("start")),
        _moment(time.get("end")),
        parse_joules(f"{energy:.0f}") if energy < 1e18 else NAN,
        own=label[:1].isdigit(),
    )


def _node(data: dict[str, Any]) -> NodeState | None:
    gpus = gpus_of(_text(data.get("tres")))
    if gpus is None:
        gpus = gpus_of(_text(data.get("gres"))) or 0.0
    since = _moment(data.get("reason_changed_at"))
    name = _text(data.get("name")) or _text(data.get("hostname"))
    flags = [str(flag) for flag in _list(data.get("state_flags"))]
    state = data.get("state")
    words = state if isinstance(state, list) else [_text(state), *flags]
    return (
        NodeState(
            name=name,
            gpus=gpus,
            state="+".join(str(word).upper() for word in words),
            reason=_text(data.get("reason")),
            since=None if math.isnan(since) else since,
        )
        if name
        else None
    )


def _repeats_a_key(data: dict[str, Any]) -> bool:
    parts = (data, *(value for value in data.values() if isinstance(value, dict)))
    return any(_REPEATED_KEY in part for part in parts)


def _inner(data: dict[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float:
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NAN
    return float(value) if abs(value) < 1e300 else NAN


def _moment(value: Any) -> float:
    """Unix time; NaN for zero, by which Slurm means a time that has not come."""
    return moment(_number(value) or NAN)


def _state(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("current")
    if isinstance(value, list):
        value = value[0] if value else ""
    return state_of(_text(value))


def _gpus(tres: dict[str, Any]) -> float:
    for kind in ("allocated", "requested"):
        listed = [part for part in _list(tres.get(kind)) if isinstance(part, dict)]
        text = ",".join(
            f"gres/{part.get('name')}={_number(part.get('count')):.0f}"
            for part in listed
            if part.get("type") == "gres" and _number(part.get("count")) >= 0
        )
        if (gpus := gpus_of(text)) is not None:
            return gpus
    return 0.0
