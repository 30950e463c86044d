"""What may make a rented run cost more, in dollars, and what would change which offer is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from computeflow.catalog import Catalog
from computeflow.comparison.offers import usual_prices
from computeflow.comparison.request import ComparisonRequest
from computeflow.comparison.results import Result
from computeflow.economics import usd_of
from computeflow.simulation import Simulation, simulate_many
from computeflow.simulation.run_inputs import RunInputs
from computeflow.simulation.sensitivity import sensitivities, variations
from computeflow.units import DAY_SECONDS, format_seconds

_CONDITIONS = {
    "failures_per_node_day": ("more failures", "{} per node-day, not {}"),
    "repair_seconds": ("slow replacement", "a lost machine is replaced after {}, not {}"),
    "stragglers_per_node_day": ("more slow nodes", "{} per node-day, not {}"),
    "straggler_slowdown": ("slower slow nodes", "one lengthens steps by {}, not {}"),
    "outages_per_year": ("more outages", "{} a year, not {}"),
    "init_seconds": ("slow restarts", "processes start in {}, not {}"),
    "load_seconds": ("slow checkpoint reads", "{} to read one, not {}"),
}
"""Conditions of a run that its plan does not settle: what their worse end is called and does."""
MAX_FACTOR = 64.0
"""Failure rates beyond so many times the assumed one are not looked at."""
_HALVINGS = 10
"""Bisections of the factor: to less than half a percent of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DollarRisk:
    name: str
    usd: float
    """More than the answer's dollars."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipPoint:
    """A value from which another answer is the better one."""

    what: str
    unit: str
    now: float
    at: float | None
    """None: not within what was looked at."""
    then: Result | None
    """None: nothing that is known meets the request then."""


def risks_of(
    request: ComparisonRequest, options: Sequence[Result], catalog: Catalog
) -> list[DollarRisk]:
    """Risks of the first option, largest first; those that cost nothing are left out."""
    first = options[0]
    risks = [
        _slow_steps(first),
        *_conditions(request, first),
        *_no_capacity(options),
        *_price(first, catalog),
    ]
    return sorted((risk for risk in risks if risk.usd > 0), key=lambda risk: -risk.usd)


def _usd(option: Result, seconds: float) -> float:
    assert option.best is not None
    gpus = option.simulation.run.allocated_gpus
    return usd_of(gpus * seconds, option.best.usd_per_device_hour)


def _slow_steps(option: Result) -> DollarRisk:
    slow = option.run.slowness[1] - 1
    days = option.seconds_range[1] / DAY_SECONDS
    late = option.seconds_range[1] > option.deadline_seconds
    return DollarRisk(
        name="slower steps",
        usd=_usd(option, slow * option.simulation.seconds.mean),
        why=f"at the slow end of the predicted range: {days:.1f} days"
        + (", after the deadline" if late else ""),
    )


def _conditions(request: ComparisonRequest, option: Result) -> list[DollarRisk]:
    """Each condition at the worse of its published ends."""
    run = option.simulation.run
    effects = sensitivities(
        run, variations(run, only=(*_CONDITIONS,)), replicas=request.replicas, seed=request.seed
    )
    risks = []
    for effect in effects:
        worse = max(effect.seconds_low, effect.seconds_high)
        end = effect.high if effect.seconds_high >= effect.seconds_low else effect.low
        name, why = _CONDITIONS[effect.name]
        ends = (_value(effect.name, value) for value in (end, effect.value))
        usd = _usd(option, worse - effect.seconds)
        risks.append(DollarRisk(name=name, usd=usd, why=why.format(*ends)))
    return risks


def _value(name: str, value: float) -> str:
    if name.endswith("_seconds"):
        return format_seconds(value)
    return f"{100 * value:.0f} %" if name == "straggler_slowdown" else f"{value:.2g}"


def _no_capacity(options: Sequence[Result]) -> list[DollarRisk]:
    """The price of going to the next provider."""
    first = options[0]
    other = next((o for o in options if o.offering.provider != first.offering.provider), None)
    if other is None or other.best is None or first.best is None:
        return []
    return [
        DollarRisk(
            name="no capacity",
            usd=other.best.usd - first.best.usd,
            why=f"nobody publishes what is free; the next provider is {other.offering.name}",
        )
    ]


def _price(option: Result, catalog: Catalog) -> list[DollarRisk]:
    """The listed price gone, and the providers' usual one in its place."""
    cost = option.best
    if cost is None:
        return []
    usual = usual_prices(catalog).get((option.offering.accelerator, cost.term), 0.0)
    more = (usual - cost.usd_per_device_hour) / cost.usd_per_device_hour
    return [
        DollarRisk(
            name="price",
            usd=more * (cost.usd - (cost.move_usd or 0.0)),
            why=f"of {cost.as_of}; the providers' median is ${usual:.2f} per device-hour",
        )
    ]


def failure_flip(
    request: ComparisonRequest, first: Result, second: Result | None, catalog: Catalog
) -> FlipPoint:
    """The failure rate from which the run is late, or another offer is cheaper at the same rate."""
    runs = [first.simulation.run, *([second.simulation.run] if second is not None else [])]
    now = first.simulation.run.conditions.failures.per_node_day

    def flips(factor: float) -> bool:
        ran = simulate_many(
            [_failing(run, factor) for run in runs], replicas=request.replicas, seed=request.seed
        )
        late = ran[0].seconds.p90 > request.seconds_left(first.offering.provider)
        return late or (second is not None and _bill(second, ran[1]) < _bill(first, ran[0]))

    factor = first_factor(flips)
    at = None if factor is None else now * factor
    return FlipPoint(what="failure rate", unit="per node-day", now=now, at=at, then=second)


def first_factor(flips: Callable[[float], bool], halvings: int = _HALVINGS) -> float | None:
    """The factor on a rate from which something is so; None: not up to `MAX_FACTOR`."""
    low, high = 1.0, MAX_FACTOR
    if not flips(high):
        return None
    for _ in range(halvings):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if flips(middle) else (middle, high)
    return high


def _failing(run: RunInputs, factor: float) -> RunInputs:
    conditions = run.conditions
    rate = factor * conditions.failures.per_node_day
    failures = replace(conditions.failures, per_node_day=rate)
    return replace(run, conditions=replace(conditions, failures=failures))


def _bill(option: Result, simulation: Simulation) -> float:
    """Dollars of a run of the option, with the move of its data."""
    cost = option.best
    assert cost is not None
    return _usd(option, simulation.seconds.mean) + (cost.move_usd or 0.0)
