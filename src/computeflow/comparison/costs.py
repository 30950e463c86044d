"""Cost of a simulated run on each term of an offer, and whether the term is available for it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from computeflow.catalog import Offer
from computeflow.comparison.offers import ODD, YEAR, Offering
from computeflow.comparison.request import ComparisonRequest
from computeflow.comparison.runs import SimulatedRun
from computeflow.economics import is_stale, ledger_cost, price_of, usd_of
from computeflow.simulation import Simulation
from computeflow.units import DAY_SECONDS, YEAR_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class TermCost:
    """The whole run on one term, on the cheapest of the sizes that were tried for it."""

    term: str
    commitment: str
    usd_per_device_hour: float
    usd: float
    """Infinite where the run does not end. Includes moving the data, where that price is known."""
    move_usd: float | None
    """Part of `usd`; None: the egress price is unknown and not included."""
    run: SimulatedRun | None
    """None where the run does not end."""
    p50_seconds: float | None
    p90_seconds: float | None
    as_of: str
    source: str
    stale: bool
    """The price is older than half a year."""
    odd: bool
    """The price is far under that of others for the same device."""
    problem: str
    """Why this term is not available for the run; empty: it is."""
    meets: bool
    """Deadline (P90) and budget, if steps are as predicted."""
    sure: bool
    """Deadline also at the slow end of the predicted range, and budget."""

    @property
    def unstated(self) -> bool:
        """The length of the reservation is not stated, so its cost beyond the run is unknown."""
        return self.term == "reserved" and self.commitment == "unstated"

    @property
    def doubtful(self) -> bool:
        return self.odd or self.unstated


def best_term(costs: Iterable[TermCost]) -> TermCost | None:
    """The cheapest available term; terms that meet deadline and budget go first, and doubtful prices
    (oddly low, or with an unstated commitment) last.
    """
    had = [cost for cost in costs if not cost.problem]
    return min(had, key=lambda cost: (not cost.meets, cost.doubtful, cost.usd), default=None)


def term_costs(
    request: ComparisonRequest,
    offering: Offering,
    steady: Sequence[SimulatedRun],
    spot: Sequence[SimulatedRun],
    usual: Mapping[tuple[str, str], float],
) -> list[TermCost]:
    """One cost for each price, on the best of the runs that were tried on such machines.

    `usual`: the usual price, by device and term.
    """
    costs = []
    for price in offering.prices:
        usually = usual.get((price.accelerator, price.term), 0.0)  # of one's own site: none
        odd = price.usd_per_device_hour < ODD * usually
        runs: Sequence[SimulatedRun | None] = spot if price.term == "spot" else steady
        tried = [_cost(request, offering, price, run, odd=odd) for run in runs or (None,)]
        costs.append(min(tried, key=lambda cost: _preference(request, cost)))
    return costs


def _preference(request: ComparisonRequest, cost: TermCost) -> tuple[bool, bool, float]:
    """Sort key of the sizes tried: available first, then the cheapest in time, else the fastest."""
    p90 = math.inf if cost.p90_seconds is None else cost.p90_seconds
    late = not cost.sure if request.sure else p90 > request.deadline_seconds
    return bool(cost.problem), late, p90 if late else cost.usd


def _cost(
    request: ComparisonRequest,
    offering: Offering,
    price: Offer,
    run: SimulatedRun | None,
    *,
    odd: bool,
) -> TermCost:
    seconds, move_usd = (
        request.move_seconds(offering.provider),
        request.move_usd(offering.provider),
    )
    problem, usd, p50, p90 = "interrupted too often to make progress", math.inf, None, None
    meets = sure = False
    if run is not None:
        ran = run.simulation.seconds
        problem = _problem(offering, price, run.simulation)
        usd = run_usd(run.simulation, price) + (move_usd or 0.0)
        p50, p90 = ran.p50 + seconds, ran.p90 + seconds
        affordable = request.budget_usd is None or usd <= request.budget_usd
        meets = not problem and affordable and p90 <= request.deadline_seconds
        sure = meets and run.slowness[1] * ran.p90 + seconds <= request.deadline_seconds
    return TermCost(
        term=price.term,
        commitment=price.commitment,
        usd_per_device_hour=price.usd_per_device_hour,
        usd=usd,
        move_usd=move_usd,
        run=run,
        p50_seconds=p50,
        p90_seconds=p90,
        as_of=price.as_of,
        source=price.source,
        stale=is_stale(price.as_of, request.today),
        odd=odd,
        problem=problem,
        meets=sure if request.sure else meets,
        sure=sure,
    )


def run_usd(simulation: Simulation, price: Offer) -> float:
    """The bill of the simulated ledger; on a contract of a year, at least that of the year."""
    usd = ledger_cost(simulation.ledger, price_of(price)).usd
    if price.commitment != YEAR:
        return usd
    year = usd_of(simulation.run.allocated_gpus * YEAR_SECONDS, price.usd_per_device_hour)
    return max(usd, year)


def _problem(offering: Offering, price: Offer, simulation: Simulation) -> str:
    """Why a price does not apply to a run; empty: it does."""
    if price.term != "reserved":
        return ""
    most = None if offering.terms is None else offering.terms.most_gpus_reserved
    if most is not None and simulation.run.allocated_gpus > most:
        return f"reserved blocks hold {most:,} GPUs at most"
    bounds, days = committed_days(price.commitment), simulation.seconds.p90 / DAY_SECONDS
    if bounds is not None and not bounds[0] <= days <= bounds[1]:
        return f"reserved for {price.commitment}: the run takes {days:,.1f} days (P90)"
    return ""


def committed_days(commitment: str) -> tuple[float, float] | None:
    """From "1-182 days"; None where the words give no bounds."""
    bounds = re.fullmatch(r"(\d+)-(\d+) days", commitment)
    return None if bounds is None else (float(bounds[1]), float(bounds[2]))
