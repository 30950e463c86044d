"""`Run`: a job on its nodes, under conditions and a policy, until its work or its time is over."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from computeflow.errors import InputError
from computeflow.ledger import Ledger
from computeflow.scheduling import Policy
from computeflow.simulation.conditions import Conditions
from computeflow.units import DAY_SECONDS

MOST_DAYS = 3650.0
_PATIENCE = 5.0
"""Times its work after which a run is given up: it would never end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    label: str
    gpus: int
    node_gpus: int
    work_seconds: float | None
    """Of steps at full speed, all of the job; None: it goes on for `wall_seconds`."""
    work_seconds_range: tuple[float, float] | None = None
    """That holds the work of 80 % of such runs, where the step's time is predicted."""
    wall_seconds: float | None = None
    """After which it ends, done or not; None: when the work is done."""
    conditions: Conditions
    policy: Policy = field(default_factory=Policy)
    step: Ledger | None = None
    """Of one step, to split the useful time; None: it is booked as `compute`."""
    assumed: tuple[str, ...] = ()
    """What was not given and what was taken for it, beside the conditions."""

    def __post_init__(self) -> None:
        if not 1 <= self.node_gpus <= self.gpus:
            raise InputError(f"nodes of {self.node_gpus} GPUs for a job of {self.gpus}")
        if self.work_seconds is None and self.wall_seconds is None:
            raise InputError("a run ends when its work is done or its time is up: give one of them")
        for seconds in (self.work_seconds, self.wall_seconds):
            if seconds is not None and not 0 < seconds <= MOST_DAYS * DAY_SECONDS:
                raise InputError(
                    f"a run of {seconds / DAY_SECONDS:,.4g} days: more than 0, at most {MOST_DAYS:,.0f}"
                )
        if self.policy.spares.nodes > max(self.nodes, 64):
            raise InputError(
                f"{self.policy.spares.nodes:,} spare nodes for a job of {self.nodes:,}: no more than "
                f"{max(self.nodes, 64):,}"
            )
        if self.conditions.lemon_share * self.nodes > 10_000:
            raise InputError("more than 10,000 lemon nodes: give a smaller lemon_share")

    @property
    def nodes(self) -> int:
        return math.ceil(self.gpus / self.node_gpus)

    @property
    def limit_seconds(self) -> float:
        """After which it ends whatever was done."""
        if self.wall_seconds is not None:
            return self.wall_seconds
        assert self.work_seconds is not None
        return _PATIENCE * self.work_seconds + 30 * DAY_SECONDS

    @property
    def interval_seconds(self) -> float:
        """Of work between two saves, as the policy has it; by formula no shorter than a step."""
        step = self.step.wall_seconds if self.step is not None else 0.0
        return self.policy.checkpoints.interval(
            write_seconds=self.conditions.stall_seconds,
            persist_seconds=max(self.conditions.persist_seconds, step),
            between_seconds=self.between_seconds,
        )

    @property
    def between_seconds(self) -> float:
        """Expected time between interruptions that are not planned; infinite without any."""
        rate = self.conditions.interruptions_per_second(self.nodes)
        return 1 / rate if rate else math.inf

    @property
    def allocated_gpus(self) -> int:
        """With those of the spares."""
        return self.gpus + self.policy.spares.nodes * self.node_gpus
