"""The value of an Uptime tier in training time: a year of a job, simulated at each tier.

All tiers have the same random failures, so that they differ by their outages alone. The number of
outages that a tier's yearly downtime is spread over is not published; the range covers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from computeflow.catalog import Catalog, UptimeTier
from computeflow.economics import usd_of
from computeflow.errors import InputError
from computeflow.scheduling import Policy, Spares
from computeflow.simulation import (
    RunInputs,
    Simulation,
    find_failures,
    simulate_many,
    usual_conditions,
)
from computeflow.simulation.run_inputs import pool_nodes
from computeflow.simulation.site_scenarios import outages, tier_conditions
from computeflow.units import DAY_SECONDS, HOUR_SECONDS, YEAR_SECONDS

_MAX_JOB_GPUS = 16384
"""GPUs of the simulated job at most: the largest whose failures are published one by one (Llama 3).
A site of more runs several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLoss:
    name: str
    availability: float
    """As the industry quotes it; no part of Uptime's standard since 2009."""
    downtime_hours: float
    """Hours down in a year, by that figure."""
    goodput: float
    """Mean of the year."""
    lost_days: float
    """Days of a year's training lost to outages: time down, lost work and restarts."""
    low: float
    high: float
    """With the fewest and the most outages that its downtime may be spread over."""
    usd_per_year: float | None
    """Dollars of the lost days of all the site's GPUs, at the given price."""


def tier_losses(
    catalog: Catalog,
    *,
    gpus: int,
    node_gpus: int,
    usd_per_gpu_hour: float | None = None,
    replicas: int = 200,
    seed: int = 0,
) -> list[TierLoss]:
    """Losses compared with the same year without any outage."""
    if gpus < node_gpus:
        raise InputError(f"{gpus} GPUs: less than one node of {node_gpus}")
    job = min(gpus, _MAX_JOB_GPUS)
    tiers = [tier for tier in catalog.tiers if tier.name in outages()]
    cases = [(tier, end) for tier in tiers for end in ("per_year", "low", "high")]
    runs = [_year(job, node_gpus, {"outages_per_year": 0.0})]
    runs += [_year(job, node_gpus, _conditions(tier, end)) for tier, end in cases]
    never, *years = simulate_many(runs, replicas=replicas, seed=seed)
    return [
        _worth(tier, years[3 * index : 3 * index + 3], never.goodput.mean, gpus, usd_per_gpu_hour)
        for index, tier in enumerate(tiers)
    ]


def _worth(
    tier: UptimeTier,
    ends: Sequence[Simulation],
    whole: float,
    gpus: int,
    usd_per_gpu_hour: float | None,
) -> TierLoss:
    """`ends`: with the usual, the fewest and the most outages; `whole`: goodput without any."""
    lost = [YEAR_SECONDS * (whole - year.goodput.mean) / whole for year in ends]
    days = [seconds / DAY_SECONDS for seconds in lost]
    price = usd_per_gpu_hour
    return TierLoss(
        name=tier.name,
        availability=tier.availability,
        downtime_hours=tier.downtime_seconds_per_year / HOUR_SECONDS,
        goodput=ends[0].goodput.mean,
        lost_days=days[0],
        low=min(days),
        high=max(days),
        usd_per_year=None if price is None else usd_of(lost[0] * gpus, price),
    )


def _conditions(tier: UptimeTier, end: str) -> dict[str, float]:
    events = float(getattr(outages()[tier.name], end))
    return tier_conditions(tier) | {
        "outages_per_year": events,
        "outage_seconds": tier.downtime_seconds_per_year / events,
    }


def _year(gpus: int, node_gpus: int, site: dict[str, float]) -> RunInputs:
    """A year of a job on whole nodes, with spares for 99 % of failures."""
    whole = gpus // node_gpus * node_gpus
    run = RunInputs(
        label="a year",
        gpus=whole,
        node_gpus=node_gpus,
        work_seconds=None,
        wall_seconds=YEAR_SECONDS,
        conditions=usual_conditions(
            find_failures("llama-3").at(whole), node_gpus=node_gpus, **site
        ),
    )
    return replace(run, policy=Policy(spares=Spares(nodes=pool_nodes(run))))
