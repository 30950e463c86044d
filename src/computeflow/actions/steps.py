"""What an action is made of: frozen values, each one step that an engine or the recorder carries out.

    Drain(node="n7", reason="straggler-rank")      no new job on it
    Requeue(job="812", exclude=("n7",))            the same job again, elsewhere
    CheckpointNow(folder="runs/a", ...)            through the recorder of the run

`step_data` and `step_from` turn them into JSON and back, for the journal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from computeflow import codec
from computeflow.errors import InputError, UnknownNameError
from computeflow.files.names import shown

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_JOB = re.compile(r"\d{1,12}(_\d{1,8})?")
_SIGNALS = ("USR1", "USR2", "TERM", "INT", "HUP", "CONT")
_MAX_REASON = 200


def check_node(name: str) -> str:
    """A node's name that may stand on a command line."""
    if not _NODE.fullmatch(name):
        raise InputError(f"node {shown(name)!r}: letters, digits, '.', '_' and '-' alone")
    return name


def check_job(name: str) -> str:
    if not _JOB.fullmatch(name):
        raise InputError(f"job {shown(name)!r}: a number, or NUMBER_TASK for one of an array")
    return name


def _check_nodes(names: tuple[str, ...]) -> None:
    for name in names:
        check_node(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Keep new jobs off a node; what runs on it goes on."""

    node: str
    reason: str

    def __post_init__(self) -> None:
        check_node(self.node)
        if not self.reason.isprintable() or len(self.reason) > _MAX_REASON:
            raise InputError(f"a reason of at most {_MAX_REASON} printable characters")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Take a drained node back."""

    node: str

    def __post_init__(self) -> None:
        check_node(self.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeNode:
    """Probe a drained node while no other job can start on it; take it back if it is accepted."""

    node: str
    command: tuple[str, ...] = ()
    """What probes it; empty: what the engine was given. Other than 0 as exit code refuses the node."""

    def __post_init__(self) -> None:
        check_node(self.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """Stop a job and start the same job again, on other nodes than these."""

    job: str
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_job(self.job)
        _check_nodes(self.exclude)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resubmit:
    """End a job that must not be requeued, and submit its script again as a new job."""

    job: str
    exclude: tuple[str, ...] = ()
    folder: str = ""
    """The run folder, where `record` keeps what the job was submitted with."""

    def __post_init__(self) -> None:
        check_job(self.job)
        _check_nodes(self.exclude)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """A new job with the plan's placement."""

    script: str
    """Path of the batch script."""
    arguments: tuple[str, ...] = ()
    nodes: int = 1
    tasks_per_node: int = 1
    gpus_per_node: int = 0
    node_order: tuple[str, ...] = ()
    """Nodes in the order of ranks; empty: the engine chooses."""
    exclude: tuple[str, ...] = ()
    max_switches: int | None = None
    """Most leaf switches, for `switch_wait_seconds` at most."""
    switch_wait_seconds: float = 0.0
    hold: bool = False
    """Submitted held: `Release` lets it go."""
    name: str = ""
    partition: str = ""
    account: str = ""
    folder: str = ""
    """Working folder, and where the output goes."""

    def __post_init__(self) -> None:
        _check_nodes((*self.node_order, *self.exclude))
        if self.nodes < 1 or self.tasks_per_node < 1:
            raise InputError(f"{self.nodes} nodes with {self.tasks_per_node} tasks: one or more")
        if self.node_order and len(set(self.node_order)) != self.nodes:
            raise InputError(f"{self.nodes} nodes, but {len(set(self.node_order))} are named")
        for what in (self.name, self.partition, self.account):
            if what and not _NODE.fullmatch(what):
                raise InputError(f"{shown(what)!r}: letters, digits, '.', '_' and '-' alone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Let a held job go, on these nodes where they are named."""

    job: str
    nodes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_job(self.job)
        _check_nodes(self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrink:
    """Let a running job go on with the nodes that it keeps."""

    job: str
    keep: tuple[str, ...]

    def __post_init__(self) -> None:
        check_job(self.job)
        _check_nodes(self.keep)
        if not self.keep:
            raise InputError(f"job {self.job}: no node is left to it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Send a signal to all processes of a job."""

    job: str
    signal: str = "USR1"

    def __post_init__(self) -> None:
        check_job(self.job)
        if self.signal not in _SIGNALS:
            raise UnknownNameError("signal", self.signal, _SIGNALS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointNow:
    """Ask the ranks of a run to save between two steps, by its recorder."""

    folder: str
    """The run folder."""
    step: int = 0
    """The step after which all ranks save; 0: the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetInterval:
    """Change the number of steps between two checkpoints, by the run's recorder."""

    folder: str
    steps: int

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"{self.steps} steps between checkpoints: one or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWindow:
    """Open a profiler window on all ranks, by the run's recorder."""

    folder: str
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSaved:
    """Go on only with a checkpoint that is whole and not older than this."""

    folder: str
    """Where the run saves."""
    since: float = 0.0
    """Unix seconds."""


EngineStep = Drain | Resume | ProbeNode | Requeue | Resubmit | Submit | Release | Shrink | Signal
RunStep = CheckpointNow | SetInterval | OpenWindow | CheckSaved
"""Steps that need no engine: they reach the run itself."""
Step = EngineStep | RunStep
KINDS: dict[str, type[Any]] = {
    "drain": Drain,
    "resume": Resume,
    "probe": ProbeNode,
    "requeue": Requeue,
    "resubmit": Resubmit,
    "submit": Submit,
    "release": Release,
    "shrink": Shrink,
    "signal": Signal,
    "checkpoint-now": CheckpointNow,
    "set-interval": SetInterval,
    "open-window": OpenWindow,
    "check-saved": CheckSaved,
}
_NAMES = {kind: name for name, kind in KINDS.items()}


def step_name(step: Step) -> str:
    return _NAMES[type(step)]


def step_data(step: Step) -> dict[str, Any]:
    return {"do": step_name(step), **codec.encode(step)}


def step_from(data: dict[str, Any]) -> Step:
    fields = dict(data)
    name = str(fields.pop("do", ""))
    if name not in KINDS:
        raise UnknownNameError("step", name, KINDS)
    step: Step = codec.decode(KINDS[name], fields, f"step {name}")
    return step
