"""`compare`: every offer for a job, each with its best plan, its simulated run and what that costs.

The cheapest hour is not the cheapest run: a slow network lowers the MFU, interruptions the goodput, and
both are paid for. Offers share plans and simulations where their hardware and site are the same.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from computeflow.catalog import Catalog, Offer
from computeflow.comparison.clusters import (
    Cluster,
    first_clusters,
    larger_cluster,
    latest_seconds,
    pace,
    steps_seconds,
)
from computeflow.comparison.living import (
    Market,
    Setting,
    gpu_seconds,
    live_on_demand,
    live_on_spot,
    run_on,
)
from computeflow.comparison.metering import energy_of
from computeflow.comparison.moving import Move
from computeflow.comparison.offers import ODD, Offering, usual_prices
from computeflow.comparison.quick import Planner
from computeflow.comparison.results import Comparison, Lived, Refused, Result, TermCost, best_term
from computeflow.comparison.size import MOST_TOKENS
from computeflow.economics import is_stale, ledger_cost, price_of
from computeflow.errors import InputError
from computeflow.simulation import Simulation
from computeflow.simulation.run import MOST_DAYS
from computeflow.workload import Job

LATE = 2.0
"""Times the deadline after which an offer is not simulated, unless all are later than that."""
NEAR = 1.5
"""Times the fastest one's days, within which it is simulated however late."""


AHEAD = 3
"""Doublings that are looked at for a cheaper run, beyond one that is in time: GPU-hours of the best
plan do not rise with every doubling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    job: Job
    tokens: float
    deadline_seconds: float
    today: datetime.date
    budget_usd: float | None = None
    most_gpus: int = 16384
    """Of any cluster that is considered."""
    least_gpus: int = 1
    """Contiguous, that an offer must have."""
    sure: bool = False
    """The deadline must hold over the range of the predicted step, too."""
    market: Market = field(default_factory=Market)
    moves: Mapping[str, Move] = field(default_factory=dict)
    """Of the data, by the provider they go to: hours, on the slow line, and dollars of every run
    there."""
    replicas: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        for what, value in (("tokens", self.tokens), ("a deadline", self.deadline_seconds)):
            if not 0 < value < math.inf:
                raise InputError(f"{what} of {value:g}: above zero and finite")
        if self.tokens > MOST_TOKENS:
            raise InputError(f"{self.tokens:g} tokens: {MOST_TOKENS:g} at most")
        if self.deadline_seconds > MOST_DAYS * 86400:
            raise InputError(f"a deadline beyond {MOST_DAYS:,.0f} days")
        if self.budget_usd is not None and not 0 < self.budget_usd < math.inf:
            raise InputError(f"a budget of {self.budget_usd:g} $: above zero and finite")
        if not 1 <= self.least_gpus <= self.most_gpus:
            raise InputError(f"clusters of {self.least_gpus} to {self.most_gpus} GPUs: none")

    def seconds_at(self, offering: Offering) -> float:
        """Until the deadline, once the data are there."""
        return self.deadline_seconds - _moved(self, offering)[0]


def compare(ask: Ask, offers: Sequence[Offering], catalog: Catalog) -> Comparison:
    planner = Planner(ask.job, catalog)
    sized, refused = _worth_simulating(ask, *first_clusters(ask, offers, planner))
    steady = _tried(ask, sized, planner, catalog, spot=False)
    spot = _tried(ask, sized, planner, catalog, spot=True)
    usual = usual_prices(catalog)
    results = [_result(ask, one.offering, firm, loose, catalog, usual)
               for one, firm, loose in zip(sized, steady, spot, strict=True)]  # fmt: skip
    return Comparison(
        ask=ask,
        results=tuple(sorted(results, key=_order)),
        refused=refused,
        searches=planner.searches,
    )


def _tried(
    ask: Ask, first: Sequence[Cluster], planner: Planner, catalog: Catalog, *, spot: bool
) -> list[list[Lived]]:
    """Of each offer, runs on its first cluster and on larger ones, while one of those may pay.

    On demand and on spot apart: interruptions ask for another size. None on spot without a price.
    """
    tried: list[list[Lived]] = [[] for _ in first]
    known: dict[Setting, Simulation | None] = {}
    active = {place: one for place, one in enumerate(first)
              if not spot or any(price.term == "spot" for price in one.offering.prices)}  # fmt: skip
    while active:
        new = [one for one in active.values() if one.setting not in known]
        known |= _lived(ask, new, catalog, spot=spot)
        larger = {}
        for place, one in active.items():
            simulation = known[one.setting]
            if simulation is None:
                continue
            tried[place].append(Lived(gpus=one.setting.gpus, plan=one.plan, simulation=simulation))
            following = _following(ask, one, tried[place], planner)
            if following is not None:
                larger[place] = following
        active = larger
    return tried


def _following(ask: Ask, one: Cluster, tried: Sequence[Lived], planner: Planner) -> Cluster | None:
    """The next larger cluster, if it may be in time where none is, or cheaper than those that are.

    Its steps alone are the least that it can cost. A looser deadline adds smaller clusters to those
    that are tried, so an offer does not get dearer by it, unless only a cluster beyond `AHEAD` is
    cheaper.
    """
    left = ask.seconds_at(one.offering)
    if latest_seconds(ask, one.plan) > left:
        return None
    left = min([left, *_longest_reserved(one.offering)])
    in_time = [gpu_seconds(run.simulation) for run in tried
               if run.simulation.seconds.p90 * pace(ask, run.plan) <= left]  # fmt: skip
    p90s = [run.simulation.seconds.p90 for run in tried[-2:]]
    if not in_time and len(p90s) > 1 and p90s[1] >= p90s[0]:
        return None
    larger = larger_cluster(ask, one, planner)
    if not in_time:
        faster = larger is not None and steps_seconds(ask, larger.plan) < steps_seconds(
            ask, one.plan
        )
        return larger if faster else None
    for _ in range(AHEAD):
        if larger is None or larger.setting.gpus * steps_seconds(ask, larger.plan) < min(in_time):
            return larger
        larger = larger_cluster(ask, larger, planner)
    return None


def _longest_reserved(offering: Offering) -> list[float]:
    """Seconds that its reservations last at most: a run that fits one may be on a larger cluster."""
    bounds = [committed_days(price.commitment) for price in offering.prices]
    return [86400 * bound[1] for bound in bounds if bound is not None]


def _worth_simulating(
    ask: Ask, sized: Sequence[Cluster], refused: Sequence[Refused]
) -> tuple[list[Cluster], tuple[Refused, ...]]:
    """Without those that are hopelessly late; the fastest stay, whatever they take."""
    days = [steps_seconds(ask, one.plan) / 86400 for one in sized]
    most = max(LATE * ask.deadline_seconds / 86400, NEAR * min(days, default=0.0))
    late = [
        Refused(
            offering=one.offering,
            reason=f"takes {took:,.0f} days on {one.setting.gpus:,} GPUs, more do not help or are "
            "not to be had",
        )
        for one, took in zip(sized, days, strict=True)
        if took > most
    ]
    kept = [one for one, took in zip(sized, days, strict=True) if took <= most]
    return kept, (*refused, *late)


def _order(result: Result) -> tuple[bool, float, str]:
    best = result.best
    return (not result.meets, math.inf if best is None else best.usd, result.offering.name)


def _lived(
    ask: Ask, sized: Sequence[Cluster], catalog: Catalog, *, spot: bool
) -> dict[Setting, Simulation | None]:
    """Every setting once; None where a run gets nowhere."""
    plans = {one.setting: one.plan for one in sized}
    runs = [run_on(setting, plan, ask.tokens, catalog, ask.market, spot=spot)
            for setting, plan in plans.items()]  # fmt: skip
    found: Sequence[Simulation | None]
    if spot:
        found = live_on_spot(runs, replicas=ask.replicas, seed=ask.seed)
    else:
        most = [setting.most_gpus for setting in plans]
        found = live_on_demand(runs, most, replicas=ask.replicas, seed=ask.seed)
    return dict(zip(plans, found, strict=True))


def _result(
    ask: Ask, offering: Offering, steady: list[Lived], spot: list[Lived], catalog: Catalog,
    usual: Mapping[tuple[str, str], float],
) -> Result:  # fmt: skip
    costs = []
    for price in offering.prices:
        usually = usual.get((price.accelerator, price.term), 0.0)  # of one's own site: none
        odd = price.usd_per_device_hour < ODD * usually
        tried: Sequence[Lived | None] = spot if price.term == "spot" else steady
        found = [_cost(ask, offering, price, run, odd=odd) for run in tried or (None,)]
        costs.append(min(found, key=lambda cost: _preference(ask, cost)))
    best = best_term(costs)
    lived = steady[0] if best is None or best.lived is None else best.lived
    return Result(
        offering=offering,
        costs=tuple(costs),
        lived=lived,
        metered=energy_of(lived.simulation.ledger, offering, catalog),
        tokens=ask.tokens,
        deadline_seconds=ask.deadline_seconds,
    )


def _preference(ask: Ask, cost: TermCost) -> tuple[bool, bool, float]:
    """Of the sizes that were tried: what can be had, the cheapest in time, else the fastest."""
    p90 = math.inf if cost.p90_seconds is None else cost.p90_seconds
    late = not cost.sure if ask.sure else p90 > ask.deadline_seconds
    return bool(cost.problem), late, p90 if late else cost.usd


def _moved(ask: Ask, offering: Offering) -> tuple[float, float]:
    """Seconds and dollars of bringing the data; a price that nobody publishes counts as nothing, and
    `TermCost.move_usd` says so.
    """
    move = ask.moves.get(offering.provider)
    return (0.0, 0.0) if move is None else (3600 * move.hours[1], move.usd or 0.0)


def _cost(
    ask: Ask, offering: Offering, price: Offer, lived: Lived | None, *, odd: bool
) -> TermCost:
    seconds, moved_usd = _moved(ask, offering)
    found = None if lived is None else lived.simulation
    usd = math.inf if found is None else ledger_cost(found.ledger, price_of(price)).usd + moved_usd
    p90 = None if found is None else found.seconds.p90 + seconds
    problem = _problem(offering, price, found)
    meets = (not problem and p90 is not None and p90 <= ask.deadline_seconds
             and (ask.budget_usd is None or usd <= ask.budget_usd))  # fmt: skip
    slowest = math.inf if lived is None else lived.slowness[1] * lived.simulation.seconds.p90
    sure = meets and slowest + seconds <= ask.deadline_seconds
    move = ask.moves.get(offering.provider)
    return TermCost(
        term=price.term,
        commitment=price.commitment,
        usd_per_device_hour=price.usd_per_device_hour,
        usd=usd,
        move_usd=0.0 if move is None else move.usd,
        lived=lived,
        p50_seconds=None if found is None else found.seconds.p50 + seconds,
        p90_seconds=p90,
        as_of=price.as_of,
        source=price.source,
        stale=is_stale(price.as_of, ask.today),
        odd=odd,
        problem=problem,
        meets=sure if ask.sure else meets,
        sure=sure,
    )


def _problem(offering: Offering, price: Offer, found: Simulation | None) -> str:
    """Why a run cannot be had at a price."""
    if found is None:
        return "interrupted more often than it gets anywhere"
    if price.term != "reserved":
        return ""
    most = None if offering.terms is None else offering.terms.most_gpus_reserved
    if most is not None and found.run.allocated_gpus > most:
        return f"reserved blocks hold {most:,} GPUs at most"
    bounds, days = committed_days(price.commitment), found.seconds.p90 / 86400
    if bounds is not None and not bounds[0] <= days <= bounds[1]:
        return f"reserved for {price.commitment}: the run takes {days:,.1f} days (P90)"
    return ""


def committed_days(commitment: str) -> tuple[float, float] | None:
    """From "1-182 days"; None where the words give no bounds."""
    found = re.fullmatch(r"(\d+)-(\d+) days", commitment)
    return None if found is None else (float(found[1]), float(found[2]))
