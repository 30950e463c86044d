"""Several providers: many runs split over them, and an owned base load with rented peaks.

`split` gives each run to the cheapest provider that still has room before the deadline. One run stays
with one provider: training over a wide-area network is not considered. `hybrid` is the newsvendor's
rule on a known demand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from computeflow.comparison.advice import usable
from computeflow.comparison.costs import TermCost
from computeflow.comparison.results import Comparison, Result
from computeflow.economics import usd_of
from computeflow.errors import InputError
from computeflow.units import YEAR_SECONDS

_MONTH_SECONDS = YEAR_SECONDS / 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShare:
    """Runs at one provider."""

    result: Result
    cost: TermCost
    runs: int
    at_once: int
    """Clusters side by side."""
    usd: float
    limit_known: bool
    """Whether it is known how large a cluster may be; else one at a time is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    runs: int
    shares: tuple[RunShare, ...]
    left: int
    """Runs that do not fit before the deadline."""
    single: RunShare | None
    """The cheapest provider that takes all runs alone; None: there is none."""

    @property
    def usd(self) -> float:
        return math.fsum(share.usd for share in self.shares)


def split(comparison: Comparison, runs: int, workload: str = "exploration") -> Split:
    """Fill providers, cheapest first, with the runs they hold before the deadline, on terms that the
    workload may use.
    """
    if not 1 <= runs <= 10_000:
        raise InputError(f"{runs} runs: 1 to 10,000")
    deadline = comparison.request.deadline_seconds
    places = _one_per_provider(comparison, workload)
    shares: list[RunShare] = []
    left = runs
    for result, cost in places:
        room = _room(result, cost, deadline)
        if left and room:
            shares.append(_share(result, cost, min(left, room), deadline))
            left -= shares[-1].runs
    alone = next(
        (
            _share(result, cost, runs, deadline)
            for result, cost in places
            if _room(result, cost, deadline) >= runs
        ),
        None,
    )
    return Split(runs=runs, shares=tuple(shares), left=left, single=alone)


def _one_per_provider(comparison: Comparison, workload: str) -> list[tuple[Result, TermCost]]:
    """The cheapest of each: two offers of one provider may be the same machines. Prices in doubt come
    last.
    """
    had = [(result, cost) for result in comparison.meeting for cost in usable(result, workload)]
    first: dict[str, tuple[Result, TermCost]] = {}
    for result, cost in sorted(had, key=lambda pair: (pair[1].doubtful, pair[1].usd)):
        first.setdefault(result.offering.provider, (result, cost))
    return list(first.values())


def _in_a_row(cost: TermCost, deadline: float) -> int:
    return int(deadline // (cost.p90_seconds or math.inf))


def _room(result: Result, cost: TermCost, deadline: float) -> int:
    """Runs before the deadline: so many one after another, times clusters that fit side by side."""
    most = result.offering.most_gpus
    assert cost.run is not None
    side_by_side = 1 if most is None else most // cost.run.simulation.run.allocated_gpus
    return _in_a_row(cost, deadline) * side_by_side


def _share(result: Result, cost: TermCost, runs: int, deadline: float) -> RunShare:
    moved = cost.move_usd or 0.0  # data come once for all runs
    return RunShare(
        result=result,
        cost=cost,
        runs=runs,
        at_once=math.ceil(runs / max(_in_a_row(cost, deadline), 1)),
        usd=runs * (cost.usd - moved) + moved,
        limit_known=result.offering.most_gpus is not None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid:
    owned_gpus: int
    usd: float
    all_owned_usd: float
    all_rented_usd: float
    owned_utilisation: float | None
    """Utilisation of owned GPUs; None: none are owned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedBase:
    """GPUs to own under a demand by month, the rest rented where a run is cheapest on demand."""

    hybrid: Hybrid
    rented: Result
    usd_per_gpu_hour: float
    """Price of a rented GPU-hour."""


def own_base(comparison: Comparison, demand_gpus: Sequence[int], owned_usd: float) -> OwnedBase:
    rent = comparison.cheapest_on_demand
    if rent is None:
        raise InputError("--demand: no offer that runs the job has an on-demand price to rent at")
    result, cost = rent
    mixed = hybrid(
        demand_gpus,
        period_seconds=_MONTH_SECONDS,
        owned_usd=owned_usd,
        rented_usd=cost.usd_per_device_hour,
    )
    return OwnedBase(hybrid=mixed, rented=result, usd_per_gpu_hour=cost.usd_per_device_hour)


def hybrid(
    demand_gpus: Sequence[int], *, period_seconds: float, owned_usd: float, rented_usd: float
) -> Hybrid:
    """How many GPUs to own under a demand by period, each $ per GPU-hour, owned ones paid always.

    The n-th GPU is worth owning if it is needed for more than owned/rented of the time (the
    newsvendor's critical ratio, exact for a known demand).
    """
    if not demand_gpus or min(demand_gpus) < 0 or max(demand_gpus) == 0:
        raise InputError("a demand is GPUs by period: zero or more, not all zero")
    if not all(0 < value < math.inf for value in (period_seconds, owned_usd, rented_usd)):
        raise InputError("a period and prices are above zero and finite")

    def bill(owned: int) -> float:
        rented = sum(max(gpus - owned, 0) for gpus in demand_gpus)
        always = usd_of(period_seconds * len(demand_gpus) * owned, owned_usd)
        return always + usd_of(period_seconds * rented, rented_usd)

    owned = _base_gpus(demand_gpus, owned_usd / rented_usd)
    used = sum(min(gpus, owned) for gpus in demand_gpus)
    return Hybrid(
        owned_gpus=owned,
        usd=bill(owned),
        all_owned_usd=bill(max(demand_gpus)),
        all_rented_usd=bill(0),
        owned_utilisation=used / (owned * len(demand_gpus)) if owned else None,
    )


def _base_gpus(demand_gpus: Sequence[int], ratio: float) -> int:
    """The highest level that is needed for more than that share of the time."""
    levels = {
        level: sum(gpus >= level for gpus in demand_gpus) / len(demand_gpus)
        for level in {0, *demand_gpus}
    }
    return max((level for level, share in levels.items() if share > ratio), default=0)
