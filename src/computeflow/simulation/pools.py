"""How many spares a run needs by rule: one for 99 % of the nodes that go to repair."""

from __future__ import annotations

import math
from dataclasses import replace

from computeflow.scheduling import Spares, spares_for
from computeflow.simulation.run import Run
from computeflow.units import DAY_SECONDS

_MOST_SPREAD = 8.0
"""Of the logarithm of repair times; beyond it the mean of a log-normal is no time at all."""


def pool_nodes(run: Run) -> int:
    """From the rate at which nodes go and the mean time until they are back."""
    conditions = run.conditions
    hardware = 1 - conditions.failures.shares["software"]
    a_day = run.nodes * (
        conditions.failures.per_node_day * hardware * conditions.repaired
        + conditions.preemptions_per_node_day
    )
    spread = min(conditions.repair_spread, _MOST_SPREAD)
    days = conditions.repair_seconds / DAY_SECONDS * math.exp(spread**2 / 2)
    return min(spares_for(repairs_per_day=a_day, repair_days=days), run.nodes)


def add_spares(run: Run) -> Run:
    """The run with as many as the rule says, and a word that nobody stated them."""
    policy = replace(run.policy, spares=Spares(nodes=pool_nodes(run)))
    return replace(run, policy=policy, assumed=(*run.assumed, "spares for 99 % of failures"))
