"""Whether a job that lacks a node waits for one or goes on with fewer data-parallel replicas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError


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
        """Nodes without which the job still goes on."""
        return (self.groups - self.least_groups) // self.lost_groups

    def shrinks(
        self,
        missing: NDArray[np.int64],
        wait_seconds: NDArray[np.float64],
        restart_seconds: NDArray[np.float64],
    ) -> NDArray[np.bool_]:
        """With so many nodes missing: does going on gain more than growing back costs?"""
        left = self.groups - self.lost_groups * missing
        gained = wait_seconds * left / self.groups
        return np.asarray((left >= self.least_groups) & (gained > restart_seconds))

    def speed(self, missing: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of the whole job's, with so many nodes missing; the batch shrinks with their replicas."""
        return np.asarray((self.groups - self.lost_groups * missing) / self.groups)
