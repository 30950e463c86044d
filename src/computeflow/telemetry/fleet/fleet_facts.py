"""What the joined sources show of a fleet: `FleetFacts`, field for field in JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from computeflow.telemetry.accounting.queue_idle import QueueIdle
from computeflow.telemetry.accounting.usage import NodeOut

Scheduler = Literal["slurm", "kubernetes", ""]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Work of a job that was lost, or its restart, in one attempt."""

    job: str
    user: str
    name: str
    state: str
    gpus: float
    end: float | None
    lost_gpu_seconds: float
    restart_gpu_seconds: float
    known_by: Literal["not retried", "job steps", "log"]
    """How it is known: nothing followed the attempt, or its steps or its log show the restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingNode:
    """A node that made jobs fail: more did than their users explain, or a fault came before."""

    node: str
    jobs: int | None
    """Jobs that ended there; None where the node does not stand out by number."""
    failed: int
    expected: float | None
    """Failures that the users' jobs on other nodes explain."""
    chance: float | None
    """Upper bound of the probability of so many failures if all nodes are alike."""
    faults: tuple[str, ...]
    """Faults that came before failures and mean that the node is to be drained."""
    lost_gpu_seconds: float
    restart_gpu_seconds: float
    unsure_gpu_seconds: float
    """GPU-seconds of failed attempts that were retried, where no log shows what they did again."""
    losses: tuple[Loss, ...]
    """Most GPU-seconds first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleJob:
    """A job that held GPUs on which nothing ran."""

    job: str
    user: str
    name: str
    nodes: tuple[str, ...]
    gpus: int
    gpu_seconds: float
    longest_seconds: float
    runs: bool
    """Whether the job had not ended at the end of the period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowedGpu:
    """A GPU that gave a reason for a low clock while it worked for a job."""

    node: str
    gpu: str
    job: str
    job_gpus: float
    runs: bool
    seconds: float
    """Seconds of it within attempts whose work was not lost."""
    all_seconds: float
    step_seconds: float | None
    """Median step of the job while the GPU was slowed; None without a log that shows it."""
    usual_step_seconds: float | None
    """The same at other times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFacts:
    start: float
    end: float
    gpus: int
    scheduler: Scheduler
    joined: tuple[str, ...]
    """Kinds of source that the fleet is joined from."""
    apart: tuple[str, ...]
    """Sources of other nodes, jobs or times, and why they are judged apart."""
    queue: QueueIdle
    held_idle_gpu_seconds: float
    """Held by jobs while nothing ran, in stretches of ten minutes or more."""
    idle_jobs: tuple[IdleJob, ...]
    failing_nodes: tuple[FailingNode, ...]
    losses: tuple[Loss, ...]
    """Losses that no failing node explains, most GPU-seconds first."""
    unsure_gpu_seconds: float
    """GPU-seconds of failed attempts that were retried, where no log shows what they did again."""
    slowed: tuple[SlowedGpu, ...]
    nodes_out: tuple[NodeOut, ...]
