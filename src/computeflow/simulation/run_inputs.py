"""`RunInputs`: a job on its nodes, under conditions and a policy, until its work or its time is over.

`pool_nodes` is how many spare nodes it needs by rule: one for 99 % of the nodes that go to repair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from computeflow.errors import InputError
from computeflow.ledger import Ledger
from computeflow.scheduling import Policy, Spares, spares_for
from computeflow.simulation.conditions import Conditions
from computeflow.units import DAY_SECONDS

MAX_DAYS = 3650.0
_PATIENCE = 5.0
"""Times its work after which a run is given up: it would never end."""
_MAX_SPREAD = 8.0
"""Largest deviation of the logarithm of repair times; beyond it the mean has no meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    label: str
    gpus: int
    node_gpus: int
    work_seconds: float | None
    """Time of all steps at full speed; None: the run lasts for `wall_seconds`."""
    work_seconds_range: tuple[float, float] | None = None
    """Work at the ends of the step's predicted range, where the step is predicted."""
    wall_seconds: float | None = None
    """Time after which the run ends, done or not; None: when the work is done."""
    conditions: Conditions
    policy: Policy = field(default_factory=Policy)
    step: Ledger | None = None
    """Ledger of one step, to split the useful time; None: it is booked as `compute`."""
    waiting_watts: float | None = None
    """Power of a device while the job is down or it stands by as a spare; None: unknown."""
    assumed: tuple[str, ...] = ()
    """Assumptions besides the conditions."""

    def __post_init__(self) -> None:
        if not 1 <= self.node_gpus <= self.gpus:
            raise InputError(f"nodes of {self.node_gpus} GPUs for a job of {self.gpus}")
        if self.work_seconds is None and self.wall_seconds is None:
            raise InputError("a run ends when its work is done or its time is up: give one of them")
        for seconds in (self.work_seconds, self.wall_seconds):
            if seconds is not None and not 0 < seconds <= MAX_DAYS * DAY_SECONDS:
                raise InputError(
                    f"a run of {seconds / DAY_SECONDS:,.4g} days: more than 0, at most {MAX_DAYS:,.0f}"
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
        """Time after which the run ends in any case."""
        if self.wall_seconds is not None:
            return self.wall_seconds
        assert self.work_seconds is not None
        return _PATIENCE * self.work_seconds + 30 * DAY_SECONDS

    @property
    def interval_seconds(self) -> float:
        """Work between two saves by the policy; by formula no shorter than a step."""
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
        """GPUs of the job and of the spares."""
        return self.gpus + self.policy.spares.nodes * self.node_gpus


def pool_nodes(run: RunInputs) -> int:
    """Spares from the rate at which nodes fail and the mean time until they are back."""
    conditions = run.conditions
    hardware = 1 - conditions.failures.shares["software"]
    a_day = run.nodes * (
        conditions.failures.per_node_day * hardware * conditions.repaired
        + conditions.preemptions_per_node_day
    )
    spread = min(conditions.repair_spread, _MAX_SPREAD)
    days = conditions.repair_seconds / DAY_SECONDS * math.exp(spread**2 / 2)
    return min(spares_for(repairs_per_day=a_day, repair_days=days), run.nodes)


def add_spares(run: RunInputs) -> RunInputs:
    """The run with the spares of the rule, which are listed among its assumptions."""
    policy = replace(run.policy, spares=Spares(nodes=pool_nodes(run)))
    return replace(run, policy=policy, assumed=(*run.assumed, "spares for 99 % of failures"))
