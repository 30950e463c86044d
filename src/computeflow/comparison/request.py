"""The request of `compare`: a job, its deadline and budget, and the terms of the market."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from computeflow.comparison.moves import Move
from computeflow.comparison.planner import check_tokens
from computeflow.comparison.providers import MAX_PREEMPTIONS, MAX_WAIT_SECONDS, Quality
from computeflow.errors import InputError
from computeflow.simulation.run_inputs import MAX_DAYS
from computeflow.units import DAY_SECONDS, HOUR_SECONDS
from computeflow.workload import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """Rented machines: how often spot ones are preempted, how soon another one is there."""

    preemptions_per_node_day: float = 0.05
    """Preemptions of spot machines. Google, of its own: 5 to 15 % in a day (older documentation), 5 to
    15 % in seven days (newer; both at cloud.google.com/compute/docs/instances/preemptible). This lies
    between; AWS's Spot Advisor gives less than 5 to more than 20 % a month. None of them is of training
    machines."""
    replace_seconds: float = 1800.0
    """Median time until a failed or preempted machine is replaced, on every term. Assumed; no provider
    publishes it."""
    replace_spread: float = 1.0
    """Standard deviation of its logarithm. Assumed."""

    def __post_init__(self) -> None:
        if not 0 <= self.preemptions_per_node_day <= MAX_PREEMPTIONS:
            raise InputError(
                f"{self.preemptions_per_node_day:g} preemptions per machine and day: 0 to "
                f"{MAX_PREEMPTIONS}"
            )
        if not 0 < self.replace_seconds <= MAX_WAIT_SECONDS:
            raise InputError(f"{self.replace_seconds:g} s for another machine: up to 30 days")

    def at(self, quality: Quality) -> Market:
        """The market with the known figures of one provider in place of the usual ones."""
        names = ("preemptions_per_node_day", "replace_seconds", "replace_spread")
        known = {name: value for name in names if (value := getattr(quality, name)) is not None}
        return replace(self, **known)

    def conditions(self, *, spot: bool) -> dict[str, float]:
        return {
            "preemptions_per_node_day": self.preemptions_per_node_day if spot else 0.0,
            "repair_seconds": self.replace_seconds,
            "repair_spread": self.replace_spread,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRequest:
    job: Job
    tokens: float
    deadline_seconds: float
    today: datetime.date
    budget_usd: float | None = None
    most_gpus: int = 16384
    """GPUs of the largest cluster considered."""
    least_gpus: int = 1
    """GPUs of the smallest cluster considered."""
    sure: bool = False
    """Whether the deadline must also hold at the slow end of the predicted range."""
    market: Market = field(default_factory=Market)
    moves: Mapping[str, Move] = field(default_factory=dict)
    """Moves of the data, by the provider they go to: hours, on the slow line, and dollars of every run
    there."""
    replicas: int = 50
    """Simulations of every run."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_tokens(self.tokens)
        if not 0 < self.deadline_seconds < math.inf:
            raise InputError(
                f"a deadline of {self.deadline_seconds:g} seconds must be above zero and finite"
            )
        if self.deadline_seconds > MAX_DAYS * DAY_SECONDS:
            raise InputError(f"a deadline beyond {MAX_DAYS:,.0f} days")
        if self.budget_usd is not None and not 0 < self.budget_usd < math.inf:
            raise InputError(f"a budget of ${self.budget_usd:g} must be above zero and finite")
        if not 1 <= self.least_gpus <= self.most_gpus:
            raise InputError(f"--min-gpus {self.least_gpus} must be between 1 and {self.most_gpus}")
        if self.seed < 0:
            raise InputError(f"a seed of {self.seed} must be zero or more")

    def move_seconds(self, provider: str) -> float:
        """Time until the data are there, on the slow line."""
        move = self.moves.get(provider)
        return 0.0 if move is None else HOUR_SECONDS * move.hours[1]

    def move_usd(self, provider: str) -> float | None:
        """None: the price of moving the data there is unknown."""
        move = self.moves.get(provider)
        return 0.0 if move is None else move.usd

    def seconds_left(self, provider: str) -> float:
        """Time until the deadline, once the data are there."""
        return self.deadline_seconds - self.move_seconds(provider)
