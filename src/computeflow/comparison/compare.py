"""`compare`: every offer for a job, each with its best plan, its simulated run and what that costs.

The cheapest hour is not the cheapest run: a slow network lowers the MFU, interruptions the goodput, and
both are paid for. Offers share plans and simulations where their hardware and site are the same.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from computeflow.catalog import Catalog, Offer
from computeflow.comparison.living import (
    Market,
    Setting,
    live_on_demand,
    live_on_spot,
    run_on,
)
from computeflow.comparison.metering import energy_of
from computeflow.comparison.offers import Offering
from computeflow.comparison.quick import Planner, Shape
from computeflow.comparison.results import Comparison, Refused, Result, TermCost
from computeflow.economics import is_stale, ledger_cost, price_of
from computeflow.errors import InputError
from computeflow.planning import Plan
from computeflow.simulation import Simulation
from computeflow.simulation.run import MOST_DAYS
from computeflow.workload import Job, flops_per_token

FIRST_MFU = 0.4
"""That the first guess of a cluster's size assumes; every size that counts is planned."""
SLACK = 0.95
"""Of the deadline, that steps alone may take; interruptions take the rest. Clusters for which that is
too little are doubled once they were simulated."""
LATE = 2.0
"""Times the deadline after which an offer is not simulated, unless all are later than that."""
NEAR = 1.5
"""Times the fastest one's days, within which it is simulated however late."""
ODD = 0.4
"""Of the providers' median price of the same device on the same term, under which a price is doubted:
lists of prices have placeholders and slips (SkyPilot's have had $0.01 floors and $700 TPUs)."""
LEAST_GAIN = 0.9
"""A cluster twice as large that takes more than this share of the time is not worth a thought."""


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
    market: Market = field(default_factory=Market)
    replicas: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        for what, value in (("tokens", self.tokens), ("a deadline", self.deadline_seconds)):
            if not 0 < value < math.inf:
                raise InputError(f"{what} of {value:g}: above zero and finite")
        if self.deadline_seconds > MOST_DAYS * 86400:
            raise InputError(f"a deadline beyond {MOST_DAYS:,.0f} days")
        if self.budget_usd is not None and not 0 < self.budget_usd < math.inf:
            raise InputError(f"a budget of {self.budget_usd:g} $: above zero and finite")
        if not 1 <= self.least_gpus <= self.most_gpus:
            raise InputError(f"clusters of {self.least_gpus} to {self.most_gpus} GPUs: none")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sized:
    offering: Offering
    setting: Setting
    plan: Plan


def compare(ask: Ask, offers: Sequence[Offering], catalog: Catalog) -> Comparison:
    planner = Planner(ask.job, catalog)
    sized, refused = _worth_simulating(ask, *_sized(ask, offers, planner))
    lived = _lived(ask, sized, catalog, spot=False)
    sized = [_enlarged(ask, one, lived[one.setting], planner) for one in sized]
    lived |= _lived(ask, [one for one in sized if one.setting not in lived], catalog, spot=False)
    on_spot = [one for one in sized if any(p.term == "spot" for p in one.offering.prices)]
    spot = _lived(ask, on_spot, catalog, spot=True)
    usual = _median_prices(catalog)
    results = [_result(ask, one, lived[one.setting], spot.get(one.setting), catalog, usual)
               for one in sized]  # fmt: skip
    return Comparison(
        ask=ask,
        results=tuple(sorted(results, key=_order)),
        refused=refused,
        searches=planner.searches,
    )


def _sized(
    ask: Ask, offers: Sequence[Offering], planner: Planner
) -> tuple[list[_Sized], list[Refused]]:
    sized: list[_Sized] = []
    refused: list[Refused] = []
    for offering in offers:
        found = _size(ask, offering, planner)
        if isinstance(found, str):
            refused.append(Refused(offering=offering, reason=found))
        else:
            gpus, plan = found
            setting = Setting(shape=offering.shape, gpus=gpus, site=offering.site)
            sized.append(_Sized(offering=offering, setting=setting, plan=plan))
    return sized, refused


def _worth_simulating(
    ask: Ask, sized: Sequence[_Sized], refused: Sequence[Refused]
) -> tuple[list[_Sized], tuple[Refused, ...]]:
    """Without those that are hopelessly late; the fastest stay, whatever they take."""
    days = [_days(ask, one.plan) for one in sized]
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


def _enlarged(ask: Ask, one: _Sized, lived: Simulation, planner: Planner) -> _Sized:
    """Twice as large, where interruptions alone make it late and a larger one is to be had."""
    steps = _days(ask, one.plan) * 86400
    if lived.seconds.p90 <= ask.deadline_seconds or steps > SLACK * ask.deadline_seconds:
        return one
    gpus = 2 * one.setting.gpus
    plan = None
    if gpus <= min(ask.most_gpus, one.offering.most_gpus or ask.most_gpus):
        plan = planner.plan(one.offering.shape, gpus)
    if plan is None or _days(ask, plan) * 86400 > LEAST_GAIN * steps:
        return one
    return replace(one, setting=replace(one.setting, gpus=gpus), plan=plan)


def _order(result: Result) -> tuple[bool, float, str]:
    best = result.best
    return (not result.meets, math.inf if best is None else best.usd, result.offering.name)


def _size(ask: Ask, offering: Offering, planner: Planner) -> tuple[int, Plan] | str:
    """The smallest cluster, doubling from one machine, whose steps end before the deadline.

    Where none does, the fastest that is worth its size; where nothing fits, the reason.
    """
    if not planner.computes(offering.shape):
        return f"{offering.accelerator} has no peak in {ask.job.precision}"
    most = min(ask.most_gpus, offering.most_gpus or ask.most_gpus)
    sizes = _sizes(offering.devices, most, ask.least_gpus)
    if not sizes:
        whose = "its largest cluster has" if offering.most_gpus else "clusters considered have"
        return f"{whose} {most:,} GPUs: {max(ask.least_gpus, offering.devices):,} are asked for"
    place = _first_guess(ask, offering.shape, sizes, planner)
    found = _plan_from(sizes, place, offering.shape, planner)
    if found is None:
        return f"fits in no layout on up to {sizes[-1]:,} GPUs"
    place, plan = found
    if _days(ask, plan) * 86400 > SLACK * ask.deadline_seconds:
        return _larger(ask, offering.shape, sizes, place, plan, planner)
    while place > 0:
        smaller = planner.plan(offering.shape, sizes[place - 1])
        if smaller is None or _days(ask, smaller) * 86400 > SLACK * ask.deadline_seconds:
            break
        place, plan = place - 1, smaller
    return sizes[place], plan


def _larger(
    ask: Ask, shape: Shape, sizes: list[int], place: int, plan: Plan, planner: Planner
) -> tuple[int, Plan] | str:
    while place + 1 < len(sizes):
        larger = planner.plan(shape, sizes[place + 1])
        if larger is None or _days(ask, larger) > LEAST_GAIN * _days(ask, plan):
            break
        place, plan = place + 1, larger
        if _days(ask, plan) * 86400 <= SLACK * ask.deadline_seconds:
            break
    if _days(ask, plan) > MOST_DAYS:
        return f"takes more than {MOST_DAYS:,.0f} days on {sizes[place]:,} GPUs"
    return sizes[place], plan


def _sizes(devices: int, most: int, least: int) -> list[int]:
    """Whole machines, doubling: layouts divide them."""
    doublings = range(max(int(math.log2(max(most / devices, 1))) + 1, 0))
    sizes = [devices << power for power in doublings]
    return [size for size in sizes if least <= size <= most]


def _first_guess(ask: Ask, shape: Shape, sizes: list[int], planner: Planner) -> int:
    device = planner.catalog.accelerators[shape.accelerator]
    peak = device.dense_flops.get(ask.job.precision) or device.dense_flops.get("bf16") or 1e15
    flops = flops_per_token(ask.job.model, ask.job.seq_len).total * ask.tokens
    wanted = flops / (FIRST_MFU * peak * ask.deadline_seconds)
    return next((n for n, size in enumerate(sizes) if size >= wanted), len(sizes) - 1)


def _plan_from(
    sizes: list[int], place: int, shape: Shape, planner: Planner
) -> tuple[int, Plan] | None:
    """The first size from here on that holds the job."""
    for number in range(place, len(sizes)):
        plan = planner.plan(shape, sizes[number])
        if plan is not None:
            return number, plan
    return None


def _days(ask: Ask, plan: Plan) -> float:
    """Of steps alone."""
    return ask.tokens / ask.job.step_tokens * plan.prediction.step_seconds / 86400


def _lived(
    ask: Ask, sized: Sequence[_Sized], catalog: Catalog, *, spot: bool
) -> dict[Setting, Simulation]:
    """Every setting once."""
    plans = {one.setting: one.plan for one in sized}
    runs = [run_on(setting, plan, ask.tokens, catalog, ask.market, spot=spot)
            for setting, plan in plans.items()]  # fmt: skip
    if not spot:
        return dict(zip(plans, live_on_demand(runs, replicas=ask.replicas, seed=ask.seed),
                        strict=True))  # fmt: skip
    found = live_on_spot(runs, replicas=ask.replicas, seed=ask.seed)
    return {setting: one for setting, one in zip(plans, found, strict=True) if one is not None}


def _median_prices(catalog: Catalog) -> dict[tuple[str, str], float]:
    """Of a device's hour, by device and term: the median of the providers' own medians."""
    every: dict[tuple[str, str], dict[str, list[float]]] = {}
    for offer in catalog.offers:
        sellers = every.setdefault((offer.accelerator, offer.term), {})
        sellers.setdefault(offer.provider, []).append(offer.usd_per_device_hour)
    return {key: median(map(median, sellers.values())) for key, sellers in every.items()}


def _result(
    ask: Ask, one: _Sized, lived: Simulation, spot: Simulation | None, catalog: Catalog,
    usual: dict[tuple[str, str], float],
) -> Result:  # fmt: skip
    costs = []
    for price in one.offering.prices:
        found = spot if price.term == "spot" else lived
        odd = price.usd_per_device_hour < ODD * usual[price.accelerator, price.term]
        costs.append(_cost(ask, one, price, found, odd=odd))
    metered = energy_of(lived.ledger, one.plan.prediction, one.offering, catalog)
    return Result(
        offering=one.offering,
        gpus=one.setting.gpus,
        plan=one.plan,
        simulation=lived,
        spot=spot,
        costs=tuple(costs),
        metered=metered,
        tokens=ask.tokens,
        deadline_seconds=ask.deadline_seconds,
    )


def _cost(ask: Ask, one: _Sized, price: Offer, found: Simulation | None, *, odd: bool) -> TermCost:
    terms = one.offering.terms
    most = terms.most_gpus_reserved if terms is not None and price.term == "reserved" else None
    problem = ""
    if found is None:
        problem = "interrupted more often than it gets anywhere"
    elif most is not None and found.run.allocated_gpus > most:
        problem = f"reserved blocks hold {most:,} GPUs at most"
    usd = math.inf if found is None else ledger_cost(found.ledger, price_of(price)).usd
    return TermCost(
        term=price.term,
        commitment=price.commitment,
        usd_per_device_hour=price.usd_per_device_hour,
        usd=usd,
        p50_seconds=None if found is None else found.seconds.p50,
        p90_seconds=None if found is None else found.seconds.p90,
        as_of=price.as_of,
        source=price.source,
        stale=is_stale(price.as_of, ask.today),
        odd=odd,
        problem=problem,
        meets=not problem
        and found is not None
        and found.seconds.p90 <= ask.deadline_seconds
        and (ask.budget_usd is None or usd <= ask.budget_usd),
    )
