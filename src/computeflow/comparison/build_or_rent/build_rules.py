"""Common rules of thumb for build or rent, checked with the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from computeflow.comparison.build_or_rent.break_even import MAX_MONTHS, Decision

Outcome = Literal["comes out", "depends", "does not come out"]
_SURE = 0.8
"""Share of draws from which an outcome counts as certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRule:
    text: str
    outcome: Outcome
    why: str


def rules(decisions: Mapping[str, Decision]) -> list[BuildRule]:
    """Check the rules with the three packaged cases, given by name."""
    small, middle, large = decisions["7B"], decisions["70B"], decisions["400B"]
    rows = [
        _rule("under 70B: rent", 1 - small.life.build_share, small, rent=True),
        _rule("70B: build (no rule says)", middle.life.build_share, middle, rent=False),
        _rule("above 400B: build", large.life.build_share, large, rent=False),
        *(_one_run(decision) for decision in (small, middle, large)),
        *(_multi_year([middle, large], months) for months in (24, 36, 48)),
        *(_sovereignty(decision) for decision in (small, large)),
    ]
    return rows


def _outcome(share: float) -> Outcome:
    if share >= _SURE:
        return "comes out"
    return "does not come out" if share <= 1 - _SURE else "depends"


def _rule(text: str, share: float, decision: Decision, *, rent: bool) -> BuildRule:
    way = "renting" if rent else "owning"
    owned, rented = decision.life.own_usd_per_hour, decision.life.rent_usd_per_hour
    return BuildRule(
        text=text,
        outcome=_outcome(share),
        why=f"{way} is cheaper in {100 * share:.0f} % of draws over the fleet's life: owned "
        f"{_range(owned)}, rented {_range(rented)} $ per used GPU-h",
    )


def _one_run(decision: Decision) -> BuildRule:
    run = decision.one_run
    share = 1 - run.build_share
    return BuildRule(
        text=f"a single {decision.need.case.name} run: rent",
        outcome=_outcome(share),
        why=f"{decision.need.days[1]:.0f} days; renting is cheaper in {100 * share:.0f} % of draws: "
        f"{_millions(run.rent_usd)} against {_millions(run.own_usd)} million $",
    )


def _multi_year(decisions: list[Decision], months: int) -> BuildRule:
    shares = [decision.build_by[months] for decision in decisions]
    parts = []
    for decision, share in zip(decisions, shares, strict=True):
        low, mid, high = (_month(value) for value in decision.break_even)
        parts.append(
            f"{decision.need.case.name}: in {100 * share:.0f} % of draws, break-even after {mid} "
            f"({low} to {high})"
        )
    return BuildRule(
        text=f"used for {months // 12} years: build",
        outcome=_outcome(min(shares) if min(shares) >= _SURE else max(shares)),
        why="; ".join(parts),
    )


def _sovereignty(decision: Decision) -> BuildRule:
    """The cost of owning where the law or the data leave no choice."""
    gap = decision.life.own_usd_per_hour[1] / decision.life.rent_usd_per_hour[1] - 1
    word = "more expensive" if gap > 0 else "cheaper"
    return BuildRule(
        text=f"sovereignty: build ({decision.need.case.name})",
        outcome="comes out" if decision.life.build_share >= _SURE else "depends",
        why="sovereignty has no price here; where nothing can be rented, building is what "
        f"remains, and a GPU-hour is {100 * abs(gap):.0f} % {word} than a rented one in the median",
    )


def _month(value: float | None) -> str:
    return f"more than {MAX_MONTHS} months" if value is None else f"{value:.0f} months"


def _range(values: tuple[float, float, float]) -> str:
    low, mid, high = values
    return f"{mid:.2f} ({low:.2f} to {high:.2f})"


def _millions(values: tuple[float, float, float]) -> str:
    low, mid, high = (value / 1e6 for value in values)
    return f"{mid:.3g} ({low:.3g} to {high:.3g})"
