"""A plan on somebody's machines as a run that fails: what `compare` simulates, on demand and on spot.

Failures are Llama 3's, per node of eight devices; machines of other sizes fail in proportion. What is
known of a site (`Quality`) goes in; what is not stays at the simulator's usual figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from computeflow.catalog import Catalog
from computeflow.comparison.quick import Shape, shape_cluster
from computeflow.comparison.terms import MOST_PREEMPTIONS, MOST_WAIT_SECONDS, Quality
from computeflow.errors import InputError
from computeflow.planning import Plan
from computeflow.scheduling import Policy, Spares
from computeflow.simulation import (
    Conditions,
    Run,
    Simulation,
    find_failures,
    simulate_many,
    usual_conditions,
)
from computeflow.simulation.planned import run_of
from computeflow.simulation.pools import pool_nodes
from computeflow.simulation.simulate import closed_form
from computeflow.simulation.sites import cooling_conditions, tier_conditions

FAILURES = "llama-3"
LEAST_ETTR = 0.4
"""Below it, by formula, a run on spot is not simulated. The median discount of the catalog's spot
prices is 59 % (433 pairs, August 2026): a run that keeps less than 41 % of its time pays more than on
demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """Where rented machines come from: how often spot ones go, how soon another one is there."""

    preemptions_per_node_day: float = 0.05
    """Of spot machines. Google, of its preemptible ones: 5 to 15 % in a day (older documentation), 5 to
    15 % in seven days (newer; both at cloud.google.com/compute/docs/instances/preemptible). This lies
    between; AWS's Spot Advisor gives less than 5 to more than 20 % a month. None of them is of training
    machines."""
    replace_seconds: float = 1800.0
    """Until another machine is there for one that broke or was taken back, on every term: the median.
    Assumed; nobody publishes it."""
    replace_spread: float = 1.0
    """Of its logarithm. Assumed."""

    def __post_init__(self) -> None:
        if not 0 <= self.preemptions_per_node_day <= MOST_PREEMPTIONS:
            raise InputError(
                f"{self.preemptions_per_node_day:g} preemptions per machine and day: 0 to "
                f"{MOST_PREEMPTIONS}"
            )
        if not 0 < self.replace_seconds <= MOST_WAIT_SECONDS:
            raise InputError(f"{self.replace_seconds:g} s for another machine: up to 30 days")

    def at(self, quality: Quality) -> Market:
        """With what is known of one seller in place of the usual."""
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
class Setting:
    """All that a simulated run depends on but its random numbers."""

    shape: Shape
    gpus: int
    quality: Quality = field(default_factory=Quality)
    most_gpus: int | None = None
    """With spares, that are to be had; None: nobody says."""


def run_on(
    setting: Setting, plan: Plan, tokens: float, catalog: Catalog, market: Market, *, spot: bool
) -> Run:
    """One run without spares; of more than ten years, an error."""
    market = market.at(setting.quality)
    cluster = shape_cluster(setting.shape, setting.gpus, catalog)
    if setting.quality.storage is not None:
        cluster = replace(cluster, storage=catalog.storage[setting.quality.storage])
    return run_of(
        plan.prediction, cluster, _conditions(setting, catalog, market, spot=spot), Policy(),
        label=f"{setting.gpus:,} {setting.shape.accelerator}", tokens=tokens,
    )  # fmt: skip


def _conditions(setting: Setting, catalog: Catalog, market: Market, *, spot: bool) -> Conditions:
    quality = setting.quality
    failures = find_failures(quality.failures or FAILURES).at(setting.gpus)
    changes = market.conditions(spot=spot)
    if quality.tier is not None:
        changes |= tier_conditions(catalog.tiers[quality.tier])
    if quality.cooling is not None:
        changes |= cooling_conditions(catalog.coolings[quality.cooling])
    devices = min(setting.shape.devices, setting.gpus)
    return usual_conditions(failures, node_gpus=devices, **changes)


def live_on_demand(
    runs: Sequence[Run], most_gpus: Sequence[int | None], *, replicas: int, seed: int
) -> list[Simulation]:
    """Each with as many spare machines as make it cheapest: none, one, or those of the usual rule, as
    far as there are so many.
    """
    choices = [
        [0, *(n for n in sorted({1, pool_nodes(run)} - {0})
              if most is None or run.gpus + n * run.node_gpus <= most)]
        for run, most in zip(runs, most_gpus, strict=True)
    ]  # fmt: skip
    every = [
        replace(run, policy=replace(run.policy, spares=Spares(nodes=nodes)))
        for run, nodes_of in zip(runs, choices, strict=True)
        for nodes in nodes_of
    ]
    found = iter(_simulated(every, replicas, seed))
    return [min((next(found) for _ in nodes_of), key=gpu_seconds) for nodes_of in choices]


def _simulated(runs: Sequence[Run], replicas: int, seed: int) -> list[Simulation]:
    """All runs, those with about as many events together.

    The simulator steps all runs of a call until the last one ends; the random numbers of a run are the
    same in any company.
    """
    groups: dict[int, list[int]] = {}
    for place, run in enumerate(runs):
        groups.setdefault(int(math.log2(1 + _events(run))), []).append(place)
    found: dict[int, Simulation] = {}
    for places in groups.values():
        lived = simulate_many([runs[p] for p in places], replicas=replicas, seed=seed)
        found |= dict(zip(places, lived, strict=True))
    return [found[place] for place in range(len(runs))]


def _events(run: Run) -> float:
    """Expected of a run, roughly."""
    met = run.conditions
    a_day = (
        met.interruptions_per_second(run.nodes) * 86400 + met.stragglers_per_node_day * run.nodes
    )
    return a_day * (run.work_seconds or 0.0) / 86400


def gpu_seconds(found: Simulation) -> float:
    """That are paid for, in the mean."""
    return found.run.allocated_gpus * found.seconds.mean


def live_on_spot(runs: Sequence[Run], *, replicas: int, seed: int) -> list[Simulation | None]:
    """None where a run would be interrupted more often than it gets anywhere."""
    worth = [run for run in runs if _expected_ettr(run) >= LEAST_ETTR]
    found = iter(_simulated(worth, replicas, seed))
    lived = [next(found) if _expected_ettr(run) >= LEAST_ETTR else None for run in runs]
    return [one if one is not None and one.finished == 1 else None for one in lived]


def _expected_ettr(run: Run) -> float:
    """The exact form with a spare at hand, less the wait for machines that are taken back."""
    met = run.conditions
    mean = met.repair_seconds * math.exp(met.repair_spread**2 / 2)
    waits = run.nodes * met.preemptions_per_node_day / 86400 * mean
    return closed_form(run).exact_ettr / (1 + waits)
