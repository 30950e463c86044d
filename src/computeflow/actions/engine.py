"""`Engine`: what carries out actions, and what it says of the cluster; the port for Slurm and others.

An engine does not do a step, it brings about its state: `advance` looks first, gives at most the next
command, and says whether the step is reached. So it is called again until it is, by whichever
controller lives then, and nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from computeflow.actions.steps import EngineStep
from computeflow.errors import ComputeFlowError

JobPhase = Literal["pending", "running", "ending", "done", "failed"]
Found = Mapping[str, Any]
"""What an engine found before a step: it knows by it what it did itself, and how to undo that."""


class EngineError(ComputeFlowError):
    """The engine does not answer: nothing is known, nothing was refused."""


class RefusedStepError(ComputeFlowError):
    """The engine answered, and refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob:
    job: str
    phase: JobPhase
    state: str
    """The engine's own word."""
    nodes: tuple[str, ...] = ()
    node_count: int = 0
    gpus: int = 0
    partition: str = ""
    account: str = ""
    user: str = ""
    held: bool = False
    excluded: tuple[str, ...] = ()
    restarts: int = 0
    can_requeue: bool = True
    comment: str = ""
    started: float | None = None
    """Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNode:
    name: str
    state: str
    partitions: tuple[str, ...] = ()
    hostname: str = ""
    is_up: bool = True
    """It answers."""
    drained: bool = False
    """No job is given to it, or will be once the present ones end."""
    busy: bool = False
    reason: str = ""

    @property
    def is_healthy(self) -> bool:
        return self.is_up and not self.drained

    @property
    def is_spare(self) -> bool:
        return self.is_healthy and not self.busy


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    at: float
    jobs: Mapping[str, EngineJob] = field(default_factory=dict)
    nodes: Mapping[str, EngineNode] = field(default_factory=dict)

    def spares(self, partition: str) -> tuple[str, ...]:
        """Idle nodes of a partition, by name."""
        return tuple(
            sorted(
                node.name
                for node in self.nodes.values()
                if node.is_spare and (not partition or partition in node.partitions)
            )
        )

    @property
    def healthy_nodes(self) -> int:
        return sum(node.is_healthy for node in self.nodes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a step would do, before it does."""

    commands: tuple[tuple[str, ...], ...]
    """As lists of words: no shell reads them."""
    changes: str
    undo: str
    """How it is undone; "" where it cannot be."""
    rights: str
    """Whose rights it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgress:
    """How far a step is after one look."""

    done: bool
    commands: tuple[tuple[str, ...], ...] = ()
    """Those that were given this time."""
    note: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    """What came of it: the number of a new job."""


class Engine(Protocol):
    """`key` marks what an action makes, so that a later controller knows it again."""

    @property
    def name(self) -> str: ...

    def observe(self) -> ClusterState: ...

    def preview(self, step: EngineStep, key: str) -> Preview: ...

    def find(self, step: EngineStep) -> dict[str, Any]:
        """What is there before the step; kept in the journal before anything is done."""

    def advance(self, step: EngineStep, key: str, found: Found) -> StepProgress: ...

    def undo(self, step: EngineStep, key: str, found: Found) -> StepProgress: ...
