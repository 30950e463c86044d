"""`compare`: every offer for a job, with its best plan, its simulated run and the cost of the run.

The cheapest hour is not the cheapest run: a slow network lowers the MFU, interruptions the goodput, and
both are paid for. Offers share plans and simulations where their hardware and site are the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from computeflow.catalog import Catalog
from computeflow.comparison.clusters import (
    Candidate,
    Progress,
    first_clusters,
    larger_clusters,
    latest_seconds,
    pace,
    silent,
    steps_seconds,
)
from computeflow.comparison.costs import TermCost, best_term, committed_days, term_costs
from computeflow.comparison.energy import read_meter
from computeflow.comparison.offers import Offering, usual_prices
from computeflow.comparison.planner import Planner
from computeflow.comparison.request import ComparisonRequest
from computeflow.comparison.results import Comparison, RefusedOffer, Result
from computeflow.comparison.runs import (
    RunSetup,
    SimulatedRun,
    gpu_seconds,
    run_on,
    simulate_on_demand,
    simulate_on_spot,
)
from computeflow.simulation import Simulation
from computeflow.units import DAY_SECONDS

_LATE = 2.0
"""Times the deadline after which an offer is not simulated, unless all are later than that."""
_STALLED = 2
"""Larger sizes in a row that end no earlier, after which still larger ones will not."""
_NEAR = 1.5
"""Times the fastest one's days, within which it is simulated however late."""


def compare(
    request: ComparisonRequest,
    offers: Sequence[Offering],
    catalog: Catalog,
    *,
    planner: Planner | None = None,
    progress: Progress = silent,
) -> Comparison:
    """`planner`: one that has planned for the job before."""
    planner = planner or Planner(request.job, catalog)
    first = first_clusters(request, offers, planner, progress)
    candidates, refused = _worth_simulating(request, *first)
    progress(f"{len(candidates):,} offers: simulating runs")
    steady = _try_sizes(request, candidates, planner, catalog, spot=False)
    spot = _try_sizes(request, candidates, planner, catalog, spot=True)
    usual = usual_prices(catalog)
    results = [
        _result(request, candidate.offering, firm, loose, catalog, usual)
        for candidate, firm, loose in zip(candidates, steady, spot, strict=True)
    ]
    return Comparison(
        request=request,
        results=tuple(sorted(results, key=_order)),
        refused=refused,
        searches=planner.searches,
    )


def on_term(result: Result, cost: TermCost, catalog: Catalog) -> Result:
    """The result on one of its terms: the run, its days and its energy are those of that term."""
    if cost.run is None:
        return result
    return replace(
        result,
        costs=(cost,),
        run=cost.run,
        meter=read_meter(cost.run.simulation.ledger, result.offering, catalog),
    )


def _try_sizes(
    request: ComparisonRequest,
    first: Sequence[Candidate],
    planner: Planner,
    catalog: Catalog,
    *,
    spot: bool,
) -> list[list[SimulatedRun]]:
    """Runs of each offer on its first cluster and on larger ones, while one of those may pay.

    On demand and on spot apart: interruptions ask for another size. None on spot without a price.
    """
    tried: list[list[SimulatedRun]] = [[] for _ in first]
    known: dict[RunSetup, Simulation | None] = {}
    active = {
        n: candidate
        for n, candidate in enumerate(first)
        if not spot or candidate.offering.sells("spot")
    }
    while active:
        new = [candidate for candidate in active.values() if candidate.setting not in known]
        known |= _simulate(request, new, catalog, spot=spot)
        larger = {
            index: _keep_run(request, candidate, known[candidate.setting], tried[index], planner)
            for index, candidate in active.items()
        }
        active = {index: candidate for index, candidate in larger.items() if candidate is not None}
    return tried


def _keep_run(
    request: ComparisonRequest,
    candidate: Candidate,
    simulation: Simulation | None,
    tried: list[SimulatedRun],
    planner: Planner,
) -> Candidate | None:
    """Record the run; return the next size, where one may pay off."""
    if simulation is None:
        return None
    gpus, plan = candidate.setting.gpus, candidate.plan
    tried.append(SimulatedRun(gpus=gpus, plan=plan, simulation=simulation))
    return _next_size(request, candidate, tried, planner)


def _next_size(
    request: ComparisonRequest,
    candidate: Candidate,
    tried: Sequence[SimulatedRun],
    planner: Planner,
) -> Candidate | None:
    """The next larger cluster that may be in time where none is, or cheaper than those that are.

    Its steps alone are the least that it can cost, so none that is cheaper is passed over. Sizes are
    the same for every deadline: a looser one adds smaller clusters to those that are tried.
    """
    left = request.seconds_left(candidate.offering.provider)
    if latest_seconds(request, candidate.plan) > left:
        return None
    left = min([left, *_longest_reserved(candidate.offering)])
    in_time = [
        gpu_seconds(run.simulation)
        for run in tried
        if run.simulation.seconds.p90 * pace(request, run.plan) <= left
    ]
    larger = larger_clusters(request, candidate, planner)
    if in_time:
        least = min(in_time)
        return next(
            (c for c in larger if c.setting.gpus * steps_seconds(request, c.plan) < least), None
        )
    p90s = [run.simulation.seconds.p90 for run in tried]
    if len(p90s) > _STALLED and min(p90s[-_STALLED:]) >= min(p90s[:-_STALLED]):
        return None
    fastest = min(steps_seconds(request, run.plan) for run in tried)
    return next((c for c in larger if steps_seconds(request, c.plan) < fastest), None)


def _longest_reserved(offering: Offering) -> list[float]:
    """Seconds that its reservations last at most: a run that fits one may be on a larger cluster."""
    bounds = [committed_days(price.commitment) for price in offering.prices]
    return [DAY_SECONDS * bound[1] for bound in bounds if bound is not None]


def _worth_simulating(
    request: ComparisonRequest, candidates: Sequence[Candidate], refused: Sequence[RefusedOffer]
) -> tuple[list[Candidate], tuple[RefusedOffer, ...]]:
    """Leave out offers that are far too late; the fastest stay, whatever they take."""
    seconds = [steps_seconds(request, candidate.plan) for candidate in candidates]
    most = max(_LATE * request.deadline_seconds, _NEAR * min(seconds, default=0.0))
    late = [
        RefusedOffer(
            offering=candidate.offering,
            reason=f"takes {took / DAY_SECONDS:,.0f} days on {candidate.setting.gpus:,} GPUs, "
            + (candidate.offering.apart or "more do not help or are not to be had"),
        )
        for candidate, took in zip(candidates, seconds, strict=True)
        if took > most
    ]
    kept = [candidate for candidate, took in zip(candidates, seconds, strict=True) if took <= most]
    return kept, (*refused, *late)


def _order(result: Result) -> tuple[bool, float, str]:
    best = result.best
    return (not result.meets, math.inf if best is None else best.usd, result.offering.name)


def _simulate(
    request: ComparisonRequest, candidates: Sequence[Candidate], catalog: Catalog, *, spot: bool
) -> dict[RunSetup, Simulation | None]:
    """Every setting once; None where a run gets nowhere."""
    plans = {candidate.setting: candidate.plan for candidate in candidates}
    runs = [
        run_on(setting, plan, request.tokens, catalog, request.market, spot=spot)
        for setting, plan in plans.items()
    ]
    simulations: Sequence[Simulation | None]
    if spot:
        simulations = simulate_on_spot(runs, replicas=request.replicas, seed=request.seed)
    else:
        most = [setting.most_gpus for setting in plans]
        simulations = simulate_on_demand(runs, most, replicas=request.replicas, seed=request.seed)
    return dict(zip(plans, simulations, strict=True))


def _result(
    request: ComparisonRequest,
    offering: Offering,
    steady: list[SimulatedRun],
    spot: list[SimulatedRun],
    catalog: Catalog,
    usual: Mapping[tuple[str, str], float],
) -> Result:
    costs = term_costs(request, offering, steady, spot, usual)
    best = best_term(costs)
    run = steady[0] if best is None or best.run is None else best.run
    return Result(
        offering=offering,
        costs=tuple(costs),
        run=run,
        meter=read_meter(run.simulation.ledger, offering, catalog),
        tokens=request.tokens,
        deadline_seconds=request.deadline_seconds,
    )
