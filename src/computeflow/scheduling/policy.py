"""`Policy`: all decisions about a run's interruptions, made before it starts.

`Eviction` says whether a node that makes everybody wait, or that fails again and again, is taken out of
the job; `Shrinking` whether a job that lacks a node waits for one or goes on with fewer data-parallel
replicas.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError, UnknownNameError
from computeflow.scheduling.checkpoints import Checkpoints
from computeflow.scheduling.spares import Spares

Rule = Literal["auto", "always", "never"]
RULES: tuple[str, ...] = get_args(Rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    stragglers: Rule = "auto"
    """auto: where the slow steps to come cost more than the restart."""
    lemon_failures: int | None = None
    """Failures of one node after which it is not taken back; None: it always is."""

    def __post_init__(self) -> None:
        if self.stragglers not in RULES:
            raise UnknownNameError("rule for stragglers", self.stragglers, RULES)
        if self.lemon_failures is not None and self.lemon_failures < 1:
            raise InputError(f"lemon_failures = {self.lemon_failures}: one or more")

    def evicts(
        self,
        slowdown: NDArray[np.float64],
        remaining_seconds: NDArray[np.float64],
        restart_seconds: NDArray[np.float64],
    ) -> NDArray[np.bool_]:
        """Whether to evict stragglers that lengthen a step by `slowdown` for `remaining_seconds`."""
        if self.stragglers == "auto":
            wasted = remaining_seconds * slowdown / (1 + slowdown)
            return np.asarray(wasted > restart_seconds)
        return np.full(np.shape(slowdown), self.stragglers == "always")

    def drops(self, failures: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which nodes, having failed so often, are not taken back."""
        if self.lemon_failures is None:
            return np.zeros(np.shape(failures), dtype=np.bool_)
        return np.asarray(failures >= self.lemon_failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrinking:
    groups: int
    """Data-parallel replicas of the model."""
    least_groups: int
    """With fewer the job waits."""
    lost_groups: int = 1
    """Replicas that are lost with a node: all that it holds, one where a replica spans nodes."""

    def __post_init__(self) -> None:
        if not 1 <= self.least_groups <= self.groups:
            raise InputError(
                f"shrinking to {self.least_groups} of {self.groups} replicas: 1 to {self.groups}"
            )
        if not 1 <= self.lost_groups <= self.groups:
            raise InputError(
                f"{self.lost_groups} of {self.groups} replicas lost with a node: 1 to {self.groups}"
            )

    @property
    def most_missing(self) -> int:
        """Most missing nodes with which the job still runs."""
        return (self.groups - self.least_groups) // self.lost_groups

    def shrinks(
        self,
        missing: NDArray[np.int64],
        wait_seconds: NDArray[np.float64],
        restart_seconds: NDArray[np.float64],
    ) -> NDArray[np.bool_]:
        """Whether running with so many nodes missing gains more than growing back costs."""
        left = self.groups - self.lost_groups * missing
        gained = wait_seconds * left / self.groups
        return np.asarray((left >= self.least_groups) & (gained > restart_seconds))

    def speed(self, missing: NDArray[np.int64]) -> NDArray[np.float64]:
        """Share of the full speed with so many nodes missing; the batch shrinks with their replicas."""
        return np.asarray((self.groups - self.lost_groups * missing) / self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    spares: Spares = field(default_factory=Spares)
    eviction: Eviction = field(default_factory=Eviction)
    shrinking: Shrinking | None = None
    """None: the job keeps its size and waits."""
