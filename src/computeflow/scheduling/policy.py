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
from computeflow.scheduling.move_policy import MovePolicy
from computeflow.scheduling.pricing import slow_cost
from computeflow.scheduling.spares import Spares

Rule = Literal["auto", "always", "never", "priced"]
RULES: tuple[str, ...] = get_args(Rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    stragglers: Rule = "auto"
    """auto: where the slow steps to come cost more than the restart, knowing how long they will come;
    priced: as a live controller decides, which does not know that (`moves`)."""
    lemon_failures: int | None = None
    """Failures of one node after which it is not taken back; None: it always is."""
    moves: MovePolicy | None = None
    """What decides where stragglers are `priced`; None: the usual one."""

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
        lasted_seconds: NDArray[np.float64] | float = 0.0,
    ) -> NDArray[np.bool_]:
        """Whether to evict stragglers that lengthen a step by `slowdown` and that have done so for
        `lasted_seconds`. `remaining_seconds`: for `auto` the time that they stay slow, for `priced` the
        time that is left of the run if they do.
        """
        if self.stragglers == "auto":
            return np.asarray(slow_cost(slowdown, remaining_seconds) > restart_seconds)
        if self.stragglers == "priced":
            return self._moves.moves_now(
                slowdown, lasted_seconds, remaining_seconds, restart_seconds
            )
        return np.full(np.shape(slowdown), self.stragglers == "always")

    def evicts_after(
        self,
        slowdown: NDArray[np.float64],
        left_seconds: NDArray[np.float64],
        restart_seconds: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Seconds after its onset at which a straggler that is looked at all the time is first evicted,
        with so much time left at the onset; infinite: never. For `priced` alone.
        """
        return self._moves.earliest_move(slowdown, left_seconds, restart_seconds)

    @property
    def _moves(self) -> MovePolicy:
        return self.moves or MovePolicy()

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
