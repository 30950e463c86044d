"""How many spares a run needs by rule: one for 99 % of the nodes that go to repair."""

from __future__ import annotations

import math

from computeflow.scheduling import spares_for
from computeflow.simulation.run import Run
from computeflow.units import DAY_SECONDS

MOST_SPREAD = 8.0
"""Of the logarithm of repair times; beyond it the mean of a log-normal is no time at all."""


def pool_nodes(run: Run) -> int:
    """From the rate at which nodes go and the mean time until they are back."""
    met = run.conditions
    hardware = 1 - met.failures.shares["software"]
    a_day = run.nodes * (
        met.failures.per_node_day * hardware * met.repaired + met.preemptions_per_node_day
    )
    spread = min(met.repair_spread, MOST_SPREAD)
    days = met.repair_seconds / DAY_SECONDS * math.exp(spread**2 / 2)
    return min(spares_for(repairs_per_day=a_day, repair_days=days), run.nodes)
