"""`ControlLimits`: what a controller may do by itself, from TOML; `refusal` says what it may not.

max_drains_per_day = 2
min_healthy_nodes = 14
min_seconds_between_actions = 1800
partitions = ["train"]
accounts = ["research"]
stop_file = "/shared/computeflow.stop"

[policy]
debounce_seconds = 300
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from computeflow import codec
from computeflow.actions.engine import ClusterState
from computeflow.actions.journal import (
    ACTED,
    ACTIVE,
    RETURN_NODE,
    ActionRecord,
    StepRecord,
)
from computeflow.actions.steps import Drain, step_from
from computeflow.errors import InputError
from computeflow.files.parsing import parse_toml
from computeflow.files.reading import read_text
from computeflow.scheduling import MovePolicy
from computeflow.units import DAY_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlLimits:
    max_drains_per_day: int
    min_healthy_nodes: int
    """Nodes that answer and are not drained, after the action."""
    min_seconds_between_actions: float
    """Between two actions on one job."""
    partitions: tuple[str, ...]
    accounts: tuple[str, ...]
    stop_file: str = ""
    """While it exists, nothing is begun."""
    max_step_seconds: float = 1800.0
    """A step that takes longer has failed: a checkpoint of a large model takes minutes."""
    return_after_seconds: float | None = None
    """How long after a drain of its own, or a refusal, a node is probed; None: when a person asks."""
    probe: tuple[str, ...] = ("computeflow", "probe", "--accept")
    """What probes a node, by itself on it; another exit code than 0 refuses the node."""
    policy: MovePolicy = field(default_factory=MovePolicy)

    def __post_init__(self) -> None:
        if self.max_drains_per_day < 0 or self.min_healthy_nodes < 0:
            raise InputError("max_drains_per_day and min_healthy_nodes: zero or more")
        if not self.min_seconds_between_actions >= 0 or not self.max_step_seconds > 0:
            raise InputError(
                "min_seconds_between_actions, max_step_seconds: zero or more, above it"
            )
        if self.return_after_seconds is not None and not self.return_after_seconds >= 0:
            raise InputError(f"return_after_seconds = {self.return_after_seconds:g}: zero or more")
        if not self.probe:
            raise InputError("probe: a command, as a list of words")
        if not self.partitions or not self.accounts:
            raise InputError(
                "partitions and accounts name at least one each: no others are touched"
            )


def read_limits(path: Path) -> ControlLimits:
    return codec.decode(ControlLimits, parse_toml(read_text(path), str(path)), str(path))


def refusal(
    limits: ControlLimits,
    action: ActionRecord,
    *,
    state: ClusterState,
    past: Sequence[ActionRecord],
    now: float,
) -> str:
    """Why an action may not begin now; "" where it may."""
    if limits.stop_file and Path(limits.stop_file).exists():
        return f"stopped: {limits.stop_file} exists"
    if why := _outside(limits, action, state):
        return why
    acted = [each for each in past if each.id != action.id and each.state in ACTED]
    jobs = _jobs_of(action, past) if action.job else set()
    since = [each.acted_at for each in acted if each.job in jobs]
    latest = max((at for at in since if at is not None), default=None)
    if latest is not None and now - latest < limits.min_seconds_between_actions:
        return (
            f"job {action.job}: {now - latest:.0f} s after its last action; at least "
            f"{limits.min_seconds_between_actions:.0f} s lie between two"
        )
    return drain_refusal(limits, action, state=state, past=past, now=now)


def _outside(limits: ControlLimits, action: ActionRecord, state: ClusterState) -> str:
    """Whether an action is on jobs or nodes that are not its to touch."""
    if action.kind == RETURN_NODE:
        nodes = [state.nodes[name] for name in action.nodes_in if name in state.nodes]
        if all(set(node.partitions) & set(limits.partitions) for node in nodes):
            return ""
        return f"{', '.join(action.nodes_in)}: only nodes of {', '.join(limits.partitions)}"
    job = state.jobs.get(action.job)
    if job is None:
        return f"job {action.job} is not known to the engine"
    if job.partition not in limits.partitions:
        return f"partition {job.partition}: only {', '.join(limits.partitions)} are allowed"
    if job.account not in limits.accounts:
        return f"account {job.account}: only {', '.join(limits.accounts)} are allowed"
    return ""


def drain_refusal(
    limits: ControlLimits,
    action: ActionRecord,
    *,
    state: ClusterState,
    past: Sequence[ActionRecord],
    now: float,
) -> str:
    """Why the nodes that an action has yet to drain may not be drained now."""
    acted = [each for each in past if each.id != action.id and each.state in ACTED]
    wanted = [node for node in drained_nodes(action) if not _is_drained(state, node)]
    if not wanted:
        return ""
    today = sum(_drains_since(each, now - DAY_SECONDS) for each in acted)
    if today + len(wanted) > limits.max_drains_per_day:
        return (
            f"{today} of {limits.max_drains_per_day} drains of a day are used up: draining "
            f"{', '.join(wanted)} would be more"
        )
    healthy = sum(name in state.nodes and state.nodes[name].is_healthy for name in wanted)
    left = state.healthy_nodes - healthy
    if healthy and left < limits.min_healthy_nodes:
        return f"{left} healthy nodes would be left: at least {limits.min_healthy_nodes} stay"
    return ""


def drained_nodes(action: ActionRecord) -> list[str]:
    """Nodes that an action drains; one that it found drained is not its."""
    return [each.node for each, _ in _drains(action)]


def _drains(action: ActionRecord) -> list[tuple[Drain, StepRecord]]:
    steps = [(step_from(record.step), record) for record in action.steps]
    return [
        (step, record)
        for step, record in steps
        if isinstance(step, Drain) and not record.found.get("drained")
    ]


def _drains_since(action: ActionRecord, moment: float) -> int:
    """Drains of an action after a moment, those that are still to come of one under way included."""
    return sum(
        action.state in ACTIVE if record.ended is None else record.ended > moment
        for _, record in _drains(action)
    )


def _is_drained(state: ClusterState, name: str) -> bool:
    node = state.nodes.get(name)
    return node is not None and node.drained


def _jobs_of(action: ActionRecord, past: Sequence[ActionRecord]) -> set[str]:
    """Numbers that the job of an action had before it was submitted again."""
    jobs = {action.job}
    for each in reversed(past):
        if each.new_job in jobs:
            jobs.add(each.job)
    return jobs
