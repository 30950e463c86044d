"""`JobState`: what a decision needs to know of a running job; `PastMove`: what an earlier one gained.

Times are Unix seconds, spans are seconds; `now` is handed in, as everything else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from computeflow.errors import InputError

FAILURES_PER_NODE_DAY = 0.0042
"""Prior for a node whose cluster has no measured rate: 584 faults of 400 nodes in 348 days (StepFun's
InfiniteHBD fault trace, `simulation/data/stepfun_faults.csv`)."""
REPAIR_SECONDS = 72_000.0
"""Median time until a broken node is back, in the same trace: 20 hours."""
RESTART_SECONDS = 429.5
"""Processes, checkpoint and warm-up where none was measured: the sum of `init_seconds`, `load_seconds`
and `warm_seconds` in `simulation/data/inputs.toml`, whose sources stand there."""
RESTART_RANGE = (100.0, 2_880.0)
"""The sums of the low and of the high ends of the same rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedNode:
    """A node that jobs are kept off, until `until`; None: until somebody takes it back."""

    node: str
    since: float
    why: str
    until: float | None = None

    def holds(self, now: float) -> bool:
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True, kw_only=True)
class PastMove:
    """An earlier move, with what it was to gain and what it gained."""

    job: str
    action: str
    at: float
    nodes: tuple[str, ...] = ()
    predicted_seconds: float | None = None
    """Net gain that was claimed, `PricedOption.lasting_net_seconds`; None: it claimed none."""
    measured_seconds: float | None = None
    """Net gain that was measured; None: not known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    run: str
    job: str
    """The engine's name for it: a Slurm job id."""
    now: float
    nodes: tuple[str, ...]
    gpus: int
    done_steps: int
    remaining_steps: int | None
    """None: unknown; then nothing is gained for certain, and a slow job is left alone."""
    healthy_step_seconds: float | None
    """The run's own usual step; None: not known yet."""
    step_seconds: float | None
    """The present step; None where the job stands still."""
    checkpoint_age_seconds: float | None = None
    """Time since the last good checkpoint; None: there is none."""
    checkpoint_interval_seconds: float | None = None
    """Time between two saves; None: unknown or never."""
    save_seconds: float = 0.0
    """Time that a save blocks training."""
    persist_seconds: float = 0.0
    """Time after which a save is safe, in the background."""
    restart_seconds: float = RESTART_SECONDS
    """From nodes in place to steady steps: processes, checkpoint, warm-up."""
    restart_range: tuple[float, float] | None = None
    """None: `restart_seconds` is known well."""
    queue_seconds: float = 0.0
    """Wait for nodes after the job is submitted again."""
    drain_seconds: float = 0.0
    """From the order to stop to nodes that are free."""
    repair_seconds: float = REPAIR_SECONDS
    """Time until a broken node is back."""
    spares: tuple[str, ...] = ()
    """Nodes that are idle, and that the job is allowed on."""
    can_checkpoint: bool = False
    """It saves on request."""
    can_swap: bool = False
    """Its order of ranks can be changed at a restart."""
    min_nodes: int | None = None
    """Fewest nodes on which it runs; None: it cannot shrink."""
    neighbour_gpu_seconds: float = 0.0
    """GPU-seconds that other jobs lose if this one takes a spare."""
    watts_per_gpu: float | None = None
    usd_per_gpu_hour: float | None = None
    usd_per_kwh: float | None = None
    failures_per_node_day: float = FAILURES_PER_NODE_DAY
    excluded: tuple[ExcludedNode, ...] = ()
    assumed: tuple[str, ...] = ("restart_seconds", "failures_per_node_day", "repair_seconds")
    """Fields above that are not measured on this cluster."""

    def __post_init__(self) -> None:
        known = {field.name for field in fields(JobState)}
        if unknown := [name for name in self.assumed if name not in known]:
            raise InputError(f"assumed: {', '.join(unknown)}: no field of a job's state")
        if not self.nodes or self.gpus < 1:
            raise InputError(f"job {self.job}: {self.gpus} GPUs on {len(self.nodes)} nodes")
        for name in _SPANS:
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"job {self.job}: {name} = {value:g}: zero or more, and finite")
        if self.restart_range is not None:
            low, high = self.restart_range
            if not 0 <= low <= self.restart_seconds <= high < math.inf:
                raise InputError(
                    f"job {self.job}: restart_seconds = {self.restart_seconds:g} outside of its "
                    f"range, {low:g} to {high:g}"
                )

    @property
    def lost_seconds(self) -> float:
        """Work that a stop without a save loses: since the checkpoint, or since the start."""
        if self.checkpoint_age_seconds is not None:
            return self.checkpoint_age_seconds
        return self.done_steps * (self.step_seconds or self.healthy_step_seconds or 0.0)

    @property
    def left_seconds(self) -> float | None:
        """The remaining work at the job's healthy speed; None: unknown."""
        if self.remaining_steps is None or self.healthy_step_seconds is None:
            return None
        return self.remaining_steps * self.healthy_step_seconds

    @property
    def usable_spares(self) -> tuple[str, ...]:
        """Spares that no exclusion holds, in their order."""
        held = {row.node for row in self.excluded if row.holds(self.now)}
        return tuple(node for node in self.spares if node not in held and node not in self.nodes)


_SPANS = (
    "done_steps", "remaining_steps", "healthy_step_seconds", "step_seconds",
    "checkpoint_age_seconds", "checkpoint_interval_seconds", "save_seconds", "persist_seconds",
    "restart_seconds", "queue_seconds", "drain_seconds", "repair_seconds", "neighbour_gpu_seconds",
    "watts_per_gpu", "usd_per_gpu_hour", "usd_per_kwh", "failures_per_node_day", "min_nodes",
)  # fmt: skip
