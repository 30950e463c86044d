"""Jobs and nodes from `squeue --json` and `sinfo --json`, as values of `actions.engine`.

The shapes of the data parsers v0.0.37 to v0.0.43 (Slurm 21.08 to 25.05): a number is a number or
`{"set", "infinite", "number"}`, a state a word or a list of words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from computeflow.actions.engine import ClusterState, EngineError, EngineJob, EngineNode, JobPhase
from computeflow.cluster.topology.hostlist import expand
from computeflow.codec import from_json
from computeflow.errors import InputError
from computeflow.files.names import shown

_PHASES: dict[str, JobPhase] = {
    "PENDING": "pending",
    "REQUEUED": "pending",
    "REQUEUE_HOLD": "pending",
    "SPECIAL_EXIT": "pending",
    "CONFIGURING": "running",
    "RUNNING": "running",
    "RESIZING": "running",
    "SIGNALING": "running",
    "SUSPENDED": "running",
    "STOPPED": "running",
    "STAGE_OUT": "ending",
    "COMPLETING": "ending",
    "COMPLETED": "done",
}
"""Any other state is of a job that failed: FAILED, NODE_FAIL, TIMEOUT, CANCELLED, ..."""
_AWAY = ("DOWN", "NOT_RESPONDING", "FAIL", "POWERED_DOWN", "POWERING_DOWN", "REBOOT", "UNKNOWN")
_DRAINED = ("DRAIN", "MAINT", "MAINTENANCE", "RESERVED", "PLANNED")
_GPUS = re.compile(r"gres/gpu(?::[^=,]+)?=(\d+)")


def read_state(jobs: str, nodes: str, at: float) -> ClusterState:
    listed = [_node(row) for row in _rows(nodes, "nodes", "sinfo --json")]
    if not listed:  # sinfo of 22.05 says so, and nothing else, where slurmctld is dead
        raise EngineError("sinfo --json: no nodes: slurmctld does not answer")
    return ClusterState(
        at=at,
        jobs={job.job: job for job in map(_job, _rows(jobs, "jobs", "squeue --json"))},
        nodes={node.name: node for node in listed},
    )


def read_jobs(text: str) -> list[dict[str, Any]]:
    """The jobs of `squeue --json`, as it has them."""
    return _rows(text, "jobs", "squeue --json")


def _rows(text: str, name: str, where: str) -> list[dict[str, Any]]:
    try:
        data = from_json(text, where)
    except InputError as error:
        raise EngineError(str(error)) from None
    if isinstance(data, dict) and data.get("errors"):  # with exit code 0, where slurmctld is dead
        raise EngineError(f"{where}: {shown(str(data['errors']), 300)}")
    rows = data.get(name) if isinstance(data, dict) else None
    if isinstance(rows, dict):  # newer ones nest them
        rows = rows.get(name)
    if not isinstance(rows, list):
        raise EngineError(f"{where}: no list of {name}")
    return [row for row in rows if isinstance(row, dict)]


def _job(row: Mapping[str, Any]) -> EngineJob:
    states = words(row.get("job_state"))
    state = "COMPLETING" if "COMPLETING" in states else states[0] if states else "UNKNOWN"
    gpus = _GPUS.search(str(row.get("tres_alloc_str") or row.get("tres_req_str") or ""))
    started = number(row.get("start_time"))
    return EngineJob(
        job=job_name(row),
        phase=_PHASES.get(state, "failed"),
        state=state,
        nodes=names(row.get("nodes")),
        node_count=int(number(row.get("node_count")) or 0),
        gpus=0 if gpus is None else int(gpus[1]),
        partition=str(row.get("partition") or ""),
        account=str(row.get("account") or ""),
        user=str(row.get("user_name") or ""),
        held=number(row.get("priority")) == 0 or row.get("hold") is True,
        excluded=names(row.get("excluded_nodes")),
        restarts=int(number(row.get("restart_cnt")) or 0),
        can_requeue=row.get("requeue") is not False,
        comment=str(row.get("comment") or ""),
        started=started or None,
    )


def job_name(row: Mapping[str, Any]) -> str:
    array, task = number(row.get("array_job_id")), number(row.get("array_task_id"))
    if array and task is not None:
        return f"{array:.0f}_{task:.0f}"
    return f"{number(row.get('job_id')) or 0:.0f}"


def _node(row: Mapping[str, Any]) -> EngineNode:
    states = [*words(row.get("state")), *words(row.get("state_flags"))]
    return EngineNode(
        name=str(row.get("name") or ""),
        state="+".join(states),
        partitions=tuple(str(each) for each in row.get("partitions") or ()),
        hostname=str(row.get("hostname") or ""),
        is_up=not any(state in _AWAY for state in states),
        drained=any(state in _DRAINED for state in states),
        busy=any(state in ("ALLOCATED", "MIXED", "COMPLETING") for state in states),
        reason=str(row.get("reason") or ""),
    )


def words(value: Any) -> list[str]:
    """States in capital letters."""
    listed = value if isinstance(value, list) else [value] if value else []
    return [str(each).upper() for each in listed]


def number(value: Any) -> float | None:
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, str) or not value or value == "(null)":
        return ()
    try:
        return tuple(expand(value))
    except InputError:
        return ()
