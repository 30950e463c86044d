"""The answer of `compare`: a `Comparison` of `Result`s, each with its costs by term."""

from __future__ import annotations

import math
from dataclasses import dataclass

from computeflow.comparison.costs import TermCost, best_term
from computeflow.comparison.energy import MeterReading
from computeflow.comparison.moves import Move
from computeflow.comparison.offers import Offering
from computeflow.comparison.request import ComparisonRequest
from computeflow.comparison.runs import SimulatedRun
from computeflow.economics import flops_per_joule
from computeflow.planning import Plan
from computeflow.simulation import Simulation
from computeflow.units import WEEK_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    offering: Offering
    costs: tuple[TermCost, ...]
    run: SimulatedRun
    """On the best term; where none can be had, on demand."""
    tokens: float
    deadline_seconds: float
    meter: MeterReading
    """Energy of the run on the best term."""

    @property
    def best(self) -> TermCost | None:
        return best_term(self.costs)

    @property
    def gpus(self) -> int:
        return self.run.gpus

    @property
    def plan(self) -> Plan:
        return self.run.plan

    @property
    def simulation(self) -> Simulation:
        return self.run.simulation

    @property
    def meets(self) -> bool:
        return any(cost.meets for cost in self.costs)

    def cost(self, term: str) -> TermCost | None:
        """The cheapest of a term."""
        return min(
            (c for c in self.costs if c.term == term and not c.problem),
            key=lambda c: c.usd,
            default=None,
        )

    @property
    def seconds(self) -> tuple[float, float]:
        """P50 and P90 on the best term."""
        best = self.best
        if best is None or best.p50_seconds is None or best.p90_seconds is None:
            return self.run.simulation.seconds.p50, self.run.simulation.seconds.p90
        return best.p50_seconds, best.p90_seconds

    @property
    def seconds_range(self) -> tuple[float, float]:
        """P50 with the step at the ends of its predicted range."""
        low, high = self.run.slowness
        ran, p50 = self.simulation.seconds.p50, self.seconds[0]
        return p50 - ran + low * ran, p50 - ran + high * ran

    @property
    def usd_per_million_tokens(self) -> float | None:
        best = self.best
        return None if best is None else best.usd / self.tokens * 1e6

    @property
    def runs_per_week(self) -> float:
        """Runs of this job, one after another on this cluster."""
        return WEEK_SECONDS / self.simulation.seconds.p50

    @property
    def gflops_per_watt(self) -> float | None:
        rate = flops_per_joule(self.simulation.ledger, self.meter.energy)
        return None if rate is None else rate / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedOffer:
    offering: Offering
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    request: ComparisonRequest
    results: tuple[Result, ...]
    """Those that meet deadline and budget first, cheapest first."""
    refused: tuple[RefusedOffer, ...]
    searches: int
    """Plans that were searched; offers of the same hardware share one."""

    @property
    def moves(self) -> tuple[Move, ...]:
        """Moves of the data to the providers that run the job; where none does, to all."""
        providers = dict.fromkeys(result.offering.provider for result in self.results)
        moves = self.request.moves
        return tuple(moves[name] for name in providers or moves) if moves else ()

    @property
    def meeting(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.meets)

    @property
    def sure(self) -> tuple[Result, ...]:
        """Results that still meet the request at the slow end of the predicted range."""
        return tuple(r for r in self.results if any(cost.sure for cost in r.costs))

    @property
    def safest(self) -> tuple[Result, TermCost] | None:
        """The cheapest result that still does, of the sizes that were tried."""
        had = [(r, cost) for r in self.results for cost in r.costs if cost.sure]
        return min(had, key=lambda pair: (pair[1].doubtful, *cheapness(pair)), default=None)

    @property
    def cheapest_list_price(self) -> Result | None:
        """The lowest on-demand price per device-hour among offers that run the job."""

        def price(result: Result) -> float:
            cost = result.cost("on-demand")
            return math.inf if cost is None else cost.usd_per_device_hour

        result = min(self.results, key=lambda r: (price(r), r.offering.name), default=None)
        return result if result is not None and price(result) < math.inf else None

    @property
    def cheapest_on_demand(self) -> tuple[Result, TermCost] | None:
        rents = [(r, cost) for r in self.results if (cost := r.cost("on-demand")) is not None]
        return min(rents, key=cheapness, default=None)

    def as_cheap(self, result: Result, cost: TermCost) -> int:
        """Other regions where the same run on the same machines and term costs the same."""
        product = (result.offering.provider, result.offering.instance)
        return sum(
            (other.offering.provider, other.offering.instance) == product
            and other.offering.region != result.offering.region
            and any(c.term == cost.term and c.usd == cost.usd for c in other.costs)
            for other in self.meeting
        )

    @property
    def nearest(self) -> Result | None:
        """Where nothing meets the request: the cheapest that keeps the deadline, else the fastest."""
        if self.meeting:
            return None
        had = [result for result in self.results if result.best is not None]
        late = self.request.deadline_seconds
        in_time = [result for result in had if result.seconds[1] <= late]
        if in_time:
            return min(in_time, key=lambda r: (_time_and_cost(r)[1], r.offering.name))
        return min(had, key=lambda r: (r.seconds[1], r.offering.name), default=None)

    @property
    def front(self) -> tuple[Result, ...]:
        """Fastest first, each cheaper than all that are faster."""
        front: list[Result] = []
        had = [result for result in self.results if result.best is not None]
        for result in sorted(had, key=_time_and_cost):
            if not front or _time_and_cost(result)[1] < _time_and_cost(front[-1])[1]:
                front.append(result)
        return tuple(front)


def cheapness(pair: tuple[Result, TermCost]) -> tuple[float, str]:
    """Sort key of offers on a term: regions often have the same price, and the answer to one question
    names one of them.
    """
    result, cost = pair
    return cost.usd, result.offering.name


def _time_and_cost(result: Result) -> tuple[float, float]:
    best = result.best
    return result.seconds[0], math.inf if best is None else best.usd
