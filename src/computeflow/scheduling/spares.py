"""How many spare nodes to keep.

A spare takes the place of a node that goes to repair; the repaired node becomes a spare. With
faults at a constant rate, the nodes in repair at a time are Poisson distributed whatever the repair
times are (M/G/infinity), so the pool that suffices with a given confidence is a quantile of it.
ByteRobust (arXiv:2509.16293, section 6.2) takes the 99th percentile of a day's faults in the same
way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from computeflow.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Spares:
    nodes: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.nodes <= 100_000:
            raise InputError(f"{self.nodes} spare nodes: 0 to 100,000")


def spares_for(*, repairs_per_day: float, repair_days: float, confidence: float = 0.99) -> int:
    """Spares of which, with this confidence, one is there when a node fails."""
    if not (repairs_per_day >= 0 and repair_days >= 0 and 0 < confidence < 1):
        raise InputError("rates and times are zero or more, a confidence is between 0 and 1")
    mean = repairs_per_day * repair_days
    if mean > 500:  # the normal approximation is within a node there; exp(-mean) would underflow
        from statistics import NormalDist

        return math.ceil(NormalDist(mean, math.sqrt(mean)).inv_cdf(confidence))
    term = total = math.exp(-mean)
    count = 0
    while total < confidence:
        count += 1
        term *= mean / count
        total += term
    return count
