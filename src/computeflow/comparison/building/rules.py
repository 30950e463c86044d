"""The usual rules of build or rent, held against what comes out of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from computeflow.comparison.building.decide import MAX_MONTHS, Decision

Outcome = Literal["comes out", "depends", "does not come out"]
_SURE = 0.8
"""Share of draws from which an answer counts as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    text: str
    outcome: Outcome
    why: str


def rules(found: Mapping[str, Decision]) -> list[Rule]:
    """Of the three packaged cases, by their names."""
    small, middle, large = found["7B"], found["70B"], found["400B"]
    rows = [
        _rule("under 70B: rent", 1 - small.life.build_share, small, rent=True),
        _rule("70B: build (no rule says)", middle.life.build_share, middle, rent=False),
        _rule("above 400B: build", large.life.build_share, large, rent=False),
        *(_one_run(one) for one in (small, middle, large)),
        *(_multi_year([middle, large], months) for months in (24, 36, 48)),
        *(_sovereignty(one) for one in (small, large)),
    ]
    return rows


def _outcome(share: float) -> Outcome:
    if share >= _SURE:
        return "comes out"
    return "does not come out" if share <= 1 - _SURE else "depends"


def _rule(text: str, share: float, one: Decision, *, rent: bool) -> Rule:
    what = "renting" if rent else "owning"
    own, let = one.life.own_usd_per_hour, one.life.rent_usd_per_hour
    return Rule(
        text=text,
        outcome=_outcome(share),
        why=f"{what} is cheaper in {100 * share:.0f} % of draws over the fleet's life: owned "
        f"{_range(own)}, rented {_range(let)} USD a used GPU-hour",
    )


def _one_run(one: Decision) -> Rule:
    share = 1 - one.one_run.build_share
    return Rule(
        text=f"a single {one.need.case.name} run: rent",
        outcome=_outcome(share),
        why=f"{one.need.days[1]:.0f} days; renting is cheaper in {100 * share:.0f} % of draws: "
        f"{_millions(one.one_run.rent_usd)} against {_millions(one.one_run.own_usd)} million USD",
    )


def _multi_year(found: list[Decision], months: int) -> Rule:
    shares = [one.build_by[months] for one in found]
    parts = []
    for one, share in zip(found, shares, strict=True):
        low, mid, high = (_month(value) for value in one.break_even)
        parts.append(
            f"{one.need.case.name}: in {100 * share:.0f} % of draws, even after {mid} ({low} "
            f"to {high})"
        )
    return Rule(
        text=f"used for {months // 12} years: build",
        outcome=_outcome(min(shares) if min(shares) >= _SURE else max(shares)),
        why="; ".join(parts),
    )


def _sovereignty(one: Decision) -> Rule:
    """What it costs to own where the law or the data leave no other way."""
    gap = one.life.own_usd_per_hour[1] / one.life.rent_usd_per_hour[1] - 1
    word = "dearer" if gap > 0 else "cheaper"
    return Rule(
        text=f"sovereignty: build ({one.need.case.name})",
        outcome="comes out" if one.life.build_share >= _SURE else "depends",
        why="no price is put on sovereignty; where it leaves nothing to rent, building is what "
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
