"""What `compare` answers: `Comparison` of `Result`s, each with its costs by term."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from computeflow.comparison.metering import Metered
from computeflow.comparison.offers import Offering
from computeflow.economics import flops_per_joule
from computeflow.planning import Plan
from computeflow.simulation import Simulation

if TYPE_CHECKING:
    from computeflow.comparison.compare import Ask

WEEK = 7 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """A run on one size of cluster."""

    gpus: int
    """Of the job, without spares."""
    plan: Plan
    simulation: Simulation

    @property
    def slowness(self) -> tuple[float, float]:
        """Of the run, if the predicted step is as far off as those of 80 % of runs: times as long."""
        found = self.plan.prediction
        low, high = found.step_seconds_range
        return low / found.step_seconds, high / found.step_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TermCost:
    """Of the whole run on one term, on the cheapest of the sizes that were tried for it."""

    term: str
    commitment: str
    usd_per_device_hour: float
    usd: float
    """Infinite where the run does not end. With bringing the data, as far as that price is known."""
    move_usd: float | None
    """In it; None: the egress price is not known, and not in it."""
    lived: Lived | None
    """None where the run does not end."""
    p50_seconds: float | None
    p90_seconds: float | None
    as_of: str
    source: str
    stale: bool
    """The price is older than half a year."""
    odd: bool
    """It is far under what others ask for the same device."""
    problem: str
    """Why it cannot be had on this term; empty: it can."""
    meets: bool
    """Deadline (P90) and budget, if steps are as predicted."""
    sure: bool
    """Deadline too if steps are as slow as the end of the predicted range."""

    @property
    def unstated(self) -> bool:
        """Reserved for nobody says how long, so what it costs beyond the run is not known."""
        return self.term == "reserved" and self.commitment == "unstated"

    @property
    def doubtful(self) -> bool:
        return self.odd or self.unstated


def best_term(costs: Iterable[TermCost]) -> TermCost | None:
    """The cheapest that can be had; those that meet deadline and budget go first, and a price that is
    oddly low, or for a commitment that nobody states, only where there is no other.
    """
    had = [cost for cost in costs if not cost.problem]
    return min(had, key=lambda cost: (not cost.meets, cost.doubtful, cost.usd), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    offering: Offering
    costs: tuple[TermCost, ...]
    lived: Lived
    """On the best term; where none can be had, on demand."""
    tokens: float
    deadline_seconds: float
    metered: Metered
    """Of the run on the best term."""

    @property
    def best(self) -> TermCost | None:
        return best_term(self.costs)

    @property
    def gpus(self) -> int:
        return self.lived.gpus

    @property
    def plan(self) -> Plan:
        return self.lived.plan

    @property
    def simulation(self) -> Simulation:
        return self.lived.simulation

    @property
    def meets(self) -> bool:
        return any(cost.meets for cost in self.costs)

    def cost(self, term: str) -> TermCost | None:
        """The cheapest of a term."""
        return min(
            (c for c in self.costs if c.term == term and not c.problem),
            key=lambda c: c.usd, default=None,
        )  # fmt: skip

    @property
    def seconds(self) -> tuple[float, float]:
        """P50 and P90 on the best term."""
        best = self.best
        if best is None or best.p50_seconds is None or best.p90_seconds is None:
            return self.lived.simulation.seconds.p50, self.lived.simulation.seconds.p90
        return best.p50_seconds, best.p90_seconds

    @property
    def seconds_range(self) -> tuple[float, float]:
        """P50 if the predicted step is as far off as those of 80 % of runs."""
        low, high = self.lived.slowness
        ran, p50 = self.simulation.seconds.p50, self.seconds[0]
        return p50 - ran + low * ran, p50 - ran + high * ran

    @property
    def usd_per_million_tokens(self) -> float | None:
        best = self.best
        return None if best is None else best.usd / self.tokens * 1e6

    @property
    def runs_per_week(self) -> float:
        """Of this job, one after another on this cluster."""
        return WEEK / self.simulation.seconds.p50

    @property
    def gflops_per_watt(self) -> float | None:
        found = flops_per_joule(self.simulation.ledger, self.metered.energy)
        return None if found is None else found / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    offering: Offering
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    ask: Ask
    results: tuple[Result, ...]
    """Those that meet deadline and budget first, cheapest first."""
    refused: tuple[Refused, ...]
    searches: int
    """Plans that were looked for; offers of the same hardware share one."""

    @property
    def meeting(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.meets)

    @property
    def sure(self) -> tuple[Result, ...]:
        """Those that meet the ask over the whole range of the predicted step."""
        return tuple(r for r in self.results if any(cost.sure for cost in r.costs))

    @property
    def safest(self) -> tuple[Result, TermCost] | None:
        """The cheapest that meets the ask over that range, of the sizes that were tried."""
        had = [(r, cost) for r in self.results for cost in r.costs if cost.sure]
        return min(had, key=lambda one: (one[1].doubtful, one[1].usd), default=None)

    @property
    def cheapest_list_price(self) -> Result | None:
        """Per device and hour, on demand, among what runs at all."""

        def price(result: Result) -> float:
            cost = result.cost("on-demand")
            return math.inf if cost is None else cost.usd_per_device_hour

        found = min(self.results, key=price, default=None)
        return found if found is not None and price(found) < math.inf else None

    @property
    def nearest(self) -> Result | None:
        """Where nothing meets the ask: the cheapest that keeps the deadline, else the fastest."""
        if self.meeting:
            return None
        had = [result for result in self.results if result.best is not None]
        late = self.ask.deadline_seconds
        in_time = [result for result in had if result.seconds[1] <= late]
        if in_time:
            return min(in_time, key=lambda r: r.best.usd if r.best else math.inf)
        return min(had, key=lambda r: r.seconds[1], default=None)

    @property
    def front(self) -> tuple[Result, ...]:
        """Fastest first, each cheaper than all that are faster."""
        found: list[Result] = []
        had = [result for result in self.results if result.best is not None]
        for result in sorted(had, key=_time_and_cost):
            if not found or _time_and_cost(result)[1] < _time_and_cost(found[-1])[1]:
                found.append(result)
        return tuple(found)


def _time_and_cost(result: Result) -> tuple[float, float]:
    best = result.best
    return result.seconds[0], math.inf if best is None else best.usd
