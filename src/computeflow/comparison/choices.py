"""`decide`: rent or build, where, on how many GPUs and for how much, with what would change that.

The options are those of `compare` that one can plan with: non-preemptible capacity, a published
network, a price that is not doubted, and a device of which runs were measured. The sizes tried are the
same for every deadline and budget, and nothing cheaper is passed over, so a looser request never costs
more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from computeflow.catalog import Catalog
from computeflow.comparison.advice import is_proven, usable
from computeflow.comparison.build_or_rent.break_even import Decision
from computeflow.comparison.clusters import Progress, silent
from computeflow.comparison.comparisons import compare, on_term
from computeflow.comparison.costs import TermCost
from computeflow.comparison.offers import CONTRACT, Offering
from computeflow.comparison.owning import OwnOption, is_sold, long_use, own_option
from computeflow.comparison.planner import Planner
from computeflow.comparison.rents import contracts
from computeflow.comparison.request import ComparisonRequest
from computeflow.comparison.results import Comparison, Result, cheapness
from computeflow.comparison.risks import DollarRisk, FlipPoint, failure_flip, risks_of
from computeflow.comparison.spot import SpotOption, cheapest_on_spot

_USUAL_DEVICE = "h100-sxm"
"""Device to build with where no price of machines with the rented one is published."""
Way = Literal["rent", "build"]
Pair = tuple[Result, TermCost]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    request: ComparisonRequest
    comparison: Comparison
    options: tuple[Result, ...]
    """Products to rent that meet the request, each on its cheapest term and in its cheapest region,
    cheapest first."""
    build: OwnOption | None
    """None: no fleet that is built meets the request."""
    build_device: str
    spot: SpotOption | None
    """The cheapest run on machines that may be taken back, which is never the answer; None: none meets
    the request, or it was not looked for."""
    long_use: Decision | None
    """Owning against renting as many GPUs for years; None where nothing can be rented."""
    unproven: tuple[Result, ...]
    """Products that would be cheaper, of devices without a measured run."""
    risks: tuple[DollarRisk, ...]
    """Largest first."""
    flips: tuple[FlipPoint, ...]

    @property
    def way(self) -> Way | None:
        """None: nothing meets the request."""
        if self.build is not None and (not self.options or self.build.usd[1] < self.usd_rented):
            return "build"
        return "rent" if self.options else None

    @property
    def rented(self) -> Result | None:
        return self.options[0] if self.options else None

    @property
    def usd_rented(self) -> float:
        return paid(self.options[0]) if self.options else math.inf

    @property
    def usd(self) -> float | None:
        """Dollars of the answer."""
        if self.way == "build" and self.build is not None:
            return self.build.usd[1]
        return self.usd_rented if self.options else None

    @property
    def usd_range(self) -> tuple[float, float] | None:
        if self.way == "build" and self.build is not None:
            return self.build.usd[0], self.build.usd[2]
        return usd_range(self.options[0]) if self.options else None

    @property
    def nearest(self) -> Result | None:
        """Where nothing meets the request: what comes nearest to it."""
        return None if self.way else self.comparison.nearest


def paid(option: Result) -> float:
    assert option.best is not None, "an option has one term"
    return option.best.usd


def usd_range(option: Result) -> tuple[float, float]:
    """Dollars at the ends of the predicted step and of the luck with failures, taken as independent:
    80 % of published runs fell inside the one, 80 % of simulations inside the other. On a contract,
    at the ends of its published prices.
    """
    usd, cost = paid(option), option.best
    if option.offering.provider == CONTRACT:
        row = contracts()[option.offering.accelerator]
        return usd * row.low / row.value, usd * row.high / row.value
    moved = 0.0 if cost is None else cost.move_usd or 0.0
    ran, (fast, slow) = option.simulation.seconds, option.run.slowness
    low = math.hypot(math.log(fast), math.log(min(ran.p10 / ran.mean, 1)))
    high = math.hypot(math.log(slow), math.log(max(ran.p90 / ran.mean, 1)))
    return moved + (usd - moved) * math.exp(-low), moved + (usd - moved) * math.exp(high)


def choose(
    request: ComparisonRequest,
    offers: Sequence[Offering],
    catalog: Catalog,
    *,
    unproven: bool = False,
    explain: bool = True,
    planner: Planner | None = None,
    progress: Progress = silent,
) -> Choice:
    """`unproven`: whether devices may be chosen of which no run was measured; `explain`: with risks and
    what would change the answer; `planner`: one that has planned for the job before.
    """
    planner = planner or Planner(request.job, catalog)
    steady = [kept for offering in offers if (kept := _steady_prices(offering)).prices]
    compared = compare(request, steady, catalog, planner=planner, progress=progress)
    pairs = _options(compared, unproven=unproven)
    options = tuple(on_term(result, cost, catalog) for result, cost in pairs)
    first = options[0] if options else None
    device = first.offering.accelerator if first else _USUAL_DEVICE
    device = device if is_sold(device, catalog) else _USUAL_DEVICE
    progress("building instead")
    build = own_option(request, device, planner)
    flips, risks, years, spot = [], [], None, None
    if explain:
        progress("on spot machines")
        usd = paid(first) if first is not None else None
        spot = cheapest_on_spot(request, offers, planner, usd, unproven=unproven, progress=progress)
    if first is not None and explain:
        progress("what would change the answer")
        sold = is_sold(first.offering.accelerator, catalog)
        years = long_use(request, device, first.plan, catalog) if sold else None
        risks = risks_of(request, options, catalog)
        flips = _flips(request, steady, options, planner, unproven=unproven)
    return Choice(
        request=request,
        comparison=compared,
        options=options,
        build=build,
        build_device=device,
        spot=spot,
        long_use=years,
        unproven=() if unproven else _cheaper_unproven(compared, pairs, catalog),
        risks=tuple(risks),
        flips=tuple(flips),
    )


def _steady_prices(offering: Offering) -> Offering:
    """The offer without prices of machines that may be taken back."""
    kept = tuple(price for price in offering.prices if price.term != "spot")
    return replace(offering, prices=kept)


def _options(compared: Comparison, *, unproven: bool) -> list[Pair]:
    """One for each product of a provider, cheapest first."""
    pairs = [
        (result, cost)
        for result in compared.meeting
        for cost in usable(result, "production", unproven=unproven)
        if not cost.doubtful
    ]
    first: dict[tuple[str, str], Pair] = {}
    for result, cost in sorted(pairs, key=cheapness):
        first.setdefault((result.offering.provider, result.offering.instance), (result, cost))
    return list(first.values())


def _cheaper_unproven(
    compared: Comparison, pairs: Sequence[Pair], catalog: Catalog
) -> tuple[Result, ...]:
    least = pairs[0][1].usd if pairs else math.inf
    return tuple(
        on_term(result, cost, catalog)
        for result, cost in _options(compared, unproven=True)
        if not is_proven(cost) and cost.usd < least
    )


def _flips(
    request: ComparisonRequest,
    offers: Sequence[Offering],
    options: Sequence[Result],
    planner: Planner,
    *,
    unproven: bool,
) -> list[FlipPoint]:
    first, catalog = options[0], planner.catalog
    assert first.best is not None and first.best.p90_seconds is not None
    second = next((o for o in options[1:] if o.offering.provider != first.offering.provider), None)
    flips = []
    if second is not None:
        price = first.best.usd_per_device_hour
        flips.append(
            FlipPoint(
                what="price",
                unit="USD per GPU-hour",
                now=price,
                at=price * paid(second) / paid(first),
                then=second,
            )
        )
    p90 = first.best.p90_seconds
    tighter = compare(
        replace(request, deadline_seconds=math.nextafter(p90, 0)), offers, catalog, planner=planner
    )
    pairs = _options(tighter, unproven=unproven)
    flips.append(
        FlipPoint(
            what="deadline",
            unit="seconds",
            now=request.deadline_seconds,
            at=p90,
            then=on_term(*pairs[0], catalog) if pairs else None,
        )
    )
    return [*flips, failure_flip(request, first, second, catalog)]
