"""The cheapest run on spot machines, and how often they may be taken back before it no longer pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from computeflow.catalog import Catalog
from computeflow.comparison.advice import is_networked, usable
from computeflow.comparison.clusters import Progress, silent
from computeflow.comparison.comparisons import compare, on_term
from computeflow.comparison.costs import TermCost
from computeflow.comparison.offers import ODD, Offering, usual_prices
from computeflow.comparison.planner import Planner
from computeflow.comparison.request import ComparisonRequest
from computeflow.comparison.results import Result, cheapness
from computeflow.comparison.risks import first_factor
from computeflow.comparison.runs import simulate_on_spot
from computeflow.economics import usd_of

_HALVINGS = 6
"""Bisections of the rate: to 7 % of it, less than its digits on the screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotOption:
    result: Result
    preemptions_per_node_day: float
    """As assumed."""
    pays_to: float | None
    """Preemptions from which the run is late, or costs as much as the answer; None: not within what was
    looked at, or there is no other answer."""


def cheapest_on_spot(
    request: ComparisonRequest,
    offers: Sequence[Offering],
    planner: Planner,
    other_usd: float | None,
    *,
    unproven: bool,
    progress: Progress = silent,
) -> SpotOption | None:
    """`other_usd`: dollars of the answer on machines that stay. None: no offer meets the request."""
    catalog = planner.catalog
    products = _products(offers, catalog)
    compared = compare(request, products, catalog, planner=planner, progress=progress)
    pairs = [
        (result, cost)
        for result in compared.meeting
        for cost in usable(result, "exploration", unproven=unproven)
        if not cost.doubtful
    ]
    if not pairs:
        return None
    result = on_term(*min(pairs, key=cheapness), catalog)
    return SpotOption(
        result=result,
        preemptions_per_node_day=result.simulation.run.conditions.preemptions_per_node_day,
        pays_to=None if other_usd is None else _pays_to(request, result, other_usd),
    )


def _products(offers: Sequence[Offering], catalog: Catalog) -> list[Offering]:
    """Each product with a training network, in the region of its least spot price that is not oddly
    low.
    """
    usual = usual_prices(catalog)
    least: dict[tuple[str, str], tuple[float, Offering]] = {}
    for offering in filter(is_networked, offers):
        floor = ODD * usual.get((offering.accelerator, "spot"), 0.0)
        prices = [
            price
            for price in offering.prices
            if price.term == "spot" and price.usd_per_device_hour >= floor
        ]
        if not prices:
            continue
        usd = min(price.usd_per_device_hour for price in prices)
        key = offering.provider, offering.instance
        if key not in least or usd < least[key][0]:
            least[key] = usd, replace(offering, prices=tuple(prices))
    return [offering for _, offering in least.values()]


def _pays_to(request: ComparisonRequest, option: Result, other_usd: float) -> float | None:
    run, cost = option.simulation.run, option.best
    assert cost is not None
    now = run.conditions.preemptions_per_node_day

    def fails(factor: float) -> bool:
        conditions = replace(run.conditions, preemptions_per_node_day=factor * now)
        (ran,) = simulate_on_spot(
            [replace(run, conditions=conditions)], replicas=request.replicas, seed=request.seed
        )
        if ran is None or ran.seconds.p90 > request.seconds_left(option.offering.provider):
            return True
        return _bill(cost, run.allocated_gpus * ran.seconds.mean) > other_usd

    factor = first_factor(fails, _HALVINGS)
    return None if factor is None else factor * now


def _bill(cost: TermCost, gpu_seconds: float) -> float:
    return usd_of(gpu_seconds, cost.usd_per_device_hour) + (cost.move_usd or 0.0)
