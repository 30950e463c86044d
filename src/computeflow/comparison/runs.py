"""A plan on somebody's machines, simulated as a run with failures, on demand and on spot.

Failures are Llama 3's, per node of eight devices; machines of other sizes fail in proportion. What is
known of a site (`Quality`) goes in; what is not stays at the simulator's usual figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

from computeflow.catalog import Catalog
from computeflow.comparison.planner import MachineShape, shape_cluster
from computeflow.comparison.providers import Quality
from computeflow.comparison.request import Market
from computeflow.planning import Plan
from computeflow.scheduling import Policy, Spares
from computeflow.simulation import (
    Conditions,
    RunInputs,
    Simulation,
    find_failures,
    simulate_many,
    usual_conditions,
)
from computeflow.simulation.run_from_plan import run_of
from computeflow.simulation.run_inputs import pool_nodes
from computeflow.simulation.simulate import closed_form
from computeflow.simulation.site_scenarios import cooling_conditions, tier_conditions
from computeflow.units import DAY_SECONDS

_FAILURES = "llama-3"
_MIN_ETTR = 0.4
"""Below it, by formula, a run on spot is not simulated. The median discount of the catalog's spot
prices is 59 % (433 pairs, August 2026): a run that keeps less than 41 % of its time pays more than on
demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetup:
    """Everything that a simulated run depends on, except its random numbers."""

    shape: MachineShape
    gpus: int
    quality: Quality = field(default_factory=Quality)
    most_gpus: int | None = None
    """GPUs that are available, with spares; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """A run on one size of cluster."""

    gpus: int
    """GPUs of the job, without spares."""
    plan: Plan
    simulation: Simulation

    @property
    def slowness(self) -> tuple[float, float]:
        """Factors on the run's time at the ends of the step's predicted range."""
        prediction = self.plan.prediction
        low, high = prediction.step_seconds_range
        return low / prediction.step_seconds, high / prediction.step_seconds


def run_on(
    setting: RunSetup, plan: Plan, tokens: float, catalog: Catalog, market: Market, *, spot: bool
) -> RunInputs:
    """One run without spares; of more than ten years, an error."""
    market = market.at(setting.quality)
    cluster = shape_cluster(setting.shape, setting.gpus, catalog)
    if setting.quality.storage is not None:
        cluster = replace(cluster, storage=catalog.storage[setting.quality.storage])
    return run_of(
        plan.prediction,
        cluster,
        _conditions(setting, catalog, market, spot=spot),
        Policy(),
        label=f"{setting.gpus:,} {setting.shape.accelerator}",
        tokens=tokens,
    )


def _conditions(setting: RunSetup, catalog: Catalog, market: Market, *, spot: bool) -> Conditions:
    quality = setting.quality
    failures = find_failures(quality.failures or _FAILURES).at(setting.gpus)
    changes = market.conditions(spot=spot)
    if quality.tier is not None:
        changes |= tier_conditions(catalog.tiers[quality.tier])
    if quality.cooling is not None:
        changes |= cooling_conditions(catalog.coolings[quality.cooling])
    devices = min(setting.shape.devices, setting.gpus)
    return usual_conditions(failures, node_gpus=devices, **changes)


def simulate_on_demand(
    runs: Sequence[RunInputs], most_gpus: Sequence[int | None], *, replicas: int, seed: int
) -> list[Simulation]:
    """Each with as many spare machines as make it cheapest: none, one, or those of the usual rule, as
    far as there are so many.
    """
    choices = [
        [
            0,
            *(
                n
                for n in sorted({1, pool_nodes(run)} - {0})
                if most is None or run.gpus + n * run.node_gpus <= most
            ),
        ]
        for run, most in zip(runs, most_gpus, strict=True)
    ]
    every = [
        replace(run, policy=replace(run.policy, spares=Spares(nodes=nodes)))
        for run, nodes_of in zip(runs, choices, strict=True)
        for nodes in nodes_of
    ]
    simulations = iter(_simulate(every, replicas, seed))
    return [min((next(simulations) for _ in nodes_of), key=gpu_seconds) for nodes_of in choices]


def _simulate(runs: Sequence[RunInputs], replicas: int, seed: int) -> list[Simulation]:
    """All runs, those with about as many events together.

    The simulator steps all runs of a call until the last one ends; the random numbers of a run are the
    same in any company.
    """
    groups: dict[int, list[int]] = {}
    for index, run in enumerate(runs):
        groups.setdefault(int(math.log2(1 + _events(run))), []).append(index)
    simulations: dict[int, Simulation] = {}
    for indices in groups.values():
        together = simulate_many([runs[n] for n in indices], replicas=replicas, seed=seed)
        simulations |= dict(zip(indices, together, strict=True))
    return [simulations[index] for index in range(len(runs))]


def _events(run: RunInputs) -> float:
    """Events that a run expects, roughly."""
    conditions = run.conditions
    rate = conditions.interruptions_per_second(run.nodes)
    rate += conditions.stragglers_per_node_day * run.nodes / DAY_SECONDS
    return rate * (run.work_seconds or 0.0)


def gpu_seconds(simulation: Simulation) -> float:
    """Mean GPU-seconds that are paid for."""
    return simulation.run.allocated_gpus * simulation.seconds.mean


def simulate_on_spot(
    runs: Sequence[RunInputs], *, replicas: int, seed: int
) -> list[Simulation | None]:
    """None where a run would be interrupted more often than it gets anywhere."""
    promising = [_expected_ettr(run) >= _MIN_ETTR for run in runs]
    simulations = iter(_simulate(list(compress(runs, promising)), replicas, seed))
    every = [next(simulations) if worth else None for worth in promising]
    return [
        simulation if simulation is not None and simulation.finished == 1 else None
        for simulation in every
    ]


def _expected_ettr(run: RunInputs) -> float:
    """The exact form with a spare at hand, less the wait for machines that are taken back."""
    conditions = run.conditions
    mean = conditions.repair_seconds * math.exp(conditions.repair_spread**2 / 2)
    waits = run.nodes * conditions.preemptions_per_node_day / DAY_SECONDS * mean
    return closed_form(run).exact_ettr / (1 + waits)
