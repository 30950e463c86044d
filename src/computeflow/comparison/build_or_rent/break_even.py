"""`decide`: owning compared with renting for one need, over all draws of all inputs.

Break-even is the first month of use from which owning, sold at that month, has cost less than renting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from computeflow.catalog import Catalog
from computeflow.comparison.build_or_rent.build_cases import RunNeed
from computeflow.comparison.build_or_rent.cost_inputs import (
    CostInput,
    Floats,
    InputDraws,
    draw_inputs,
    inputs_for,
    middle_inputs,
    servers,
)
from computeflow.comparison.build_or_rent.ownership_costs import (
    BuiltFleet,
    Hall,
    busy_hours,
    fleet_of,
    owned_costs,
    owned_usd,
    rented_usd,
)
from computeflow.comparison.build_or_rent.waiting import FleetStrategy, next_inputs, ways
from computeflow.comparison.machines import machine_of
from computeflow.comparison.rents import find_rents
from computeflow.economics import Price, ledger_cost
from computeflow.errors import InputError
from computeflow.units import DAY_SECONDS, YEAR_SECONDS

MAX_MONTHS = 72
_BY_MONTHS = (12, 24, 36, 48, 60)
Three = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """USD at each month of use: P10, P50 and P90 over the draws."""

    months: tuple[float, ...]
    own: tuple[Three, ...]
    rent: tuple[Three, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAndRent:
    """Owning and renting for so many months."""

    months: float
    own_usd: Three
    rent_usd: Three
    own_usd_per_hour: Three
    """Per GPU-hour that is used."""
    rent_usd_per_hour: Three
    build_share: float
    """Share of draws in which owning is cheaper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swing:
    """One input at its ends, all others in the middle."""

    input: CostInput
    gap_low: float
    """Own less rent, USD per GPU-hour used, at the input's low end."""
    gap_high: float
    months_low: float | None
    """Break-even at the low end; None: never in `MAX_MONTHS`."""
    months_high: float | None

    @property
    def swing(self) -> float:
        return abs(self.gap_high - self.gap_low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    need: RunNeed
    fleet: BuiltFleet
    inputs: dict[str, CostInput]
    draws: int
    curve: Curve
    break_even: tuple[float | None, float | None, float | None]
    """Months: P10, P50, P90; None: not within `MAX_MONTHS`."""
    never: float
    """Share of draws that do not break even."""
    build_by: dict[int, float]
    """Months of use to the share of draws in which owning, sold then, is cheaper."""
    busy_even: tuple[float | None, float | None, float | None]
    """Share of hours that must be used for owning to pay over the fleet's life, against on-demand."""
    one_run: OwnAndRent
    life: OwnAndRent
    gap: float
    """Own less rent, USD per GPU-hour used, with everything in the middle."""
    gap_months: float | None
    """Break-even of that case; None: not within `MAX_MONTHS`."""
    gap_draws: Three
    """Own less rent likewise, over the draws. Its median is not `gap`: ends lie unevenly around the
    middle, and what is cheaper of two rents is no linear cost."""
    swings: tuple[Swing, ...]
    """Largest effect first."""
    spending: dict[str, Three]
    """USD by part of owning, over the fleet's life."""
    waste: dict[str, float]
    """USD of one run by account, at what an owned GPU-hour costs."""
    ways: tuple[FleetStrategy, ...]
    """Rent, build now, or rent until the next generation and build then."""

    @property
    def owns(self) -> bool:
        """The verdict over the fleet's life: whether owning is cheaper in most draws."""
        return self.life.build_share >= 0.5

    @property
    def margin(self) -> float:
        """Share by which rents would have to change for both to cost the same, in the medians."""
        return self.life.own_usd[1] / self.life.rent_usd[1] - 1


def decide(
    need: RunNeed,
    catalog: Catalog,
    *,
    hall: Hall = "colocation",
    given: Mapping[str, float] | None = None,
    upgrade: str | None = "gb200",
    draws: int = 400,
    seed: int = 0,
) -> Decision:
    """`upgrade`: the accelerator whose step over this one stands for the next generation's."""
    name = catalog.accelerators[need.case.on].name
    server = servers().get(name)
    machine = machine_of(name, catalog)
    fleet = fleet_of(
        machine,
        need.case.gpus,
        all_in=server is not None and server.all_in,
        hall=hall,
        spare_gpus=need.spare_gpus,
    )
    rows = inputs_for(name, find_rents(catalog, name), given or {}, liquid=machine.liquid)
    later = next_inputs(need, catalog, upgrade) if upgrade else {}
    terms = draw_inputs(rows | later, draws, seed)
    months = np.arange(1, MAX_MONTHS + 1, dtype=np.float64)
    even = break_even(fleet, terms)
    life = own_and_rent(fleet, terms, 12 * terms["life_years"])
    own_hour = life.own_usd_per_hour[1]
    price = Price(usd_per_gpu_hour=own_hour, source="owned, the median draw", as_of="2026")
    return Decision(
        need=need,
        fleet=fleet,
        inputs=rows,
        draws=draws,
        curve=_curve(fleet, terms, months),
        break_even=_months(even),
        never=float(np.mean(np.isinf(even))),
        build_by={m: _pays(fleet, terms, m) for m in _BY_MONTHS},
        busy_even=_shares(fleet, terms),
        one_run=own_and_rent(
            fleet,
            terms,
            np.full(draws, need.days[1] * DAY_SECONDS / (YEAR_SECONDS / 12)),
            whole=True,
        ),
        life=life,
        gap=float(_gap(fleet, middle_inputs(rows))[0]),
        gap_months=_months(break_even(fleet, middle_inputs(rows)))[1],
        gap_draws=percentiles(_gap(fleet, terms)),
        swings=_swings(fleet, rows),
        spending=_spending(fleet, terms),
        waste=ledger_cost(need.ledger, price).by_account,
        ways=ways(fleet, terms, need, catalog, upgrade),
    )


def own_and_rent(
    fleet: BuiltFleet, terms: InputDraws, months: Floats, *, whole: bool = False
) -> OwnAndRent:
    """`whole`: every hour of those months is used, as in one run."""
    if whole:
        terms = {**terms, "busy": np.ones_like(terms["busy"])}
    if np.any(months <= 0):
        raise InputError("months of use: more than zero")
    own, rent = owned_usd(fleet, terms, months), rented_usd(fleet, terms, months)
    hours = busy_hours(fleet, terms, months)
    return OwnAndRent(
        months=float(np.median(months)),
        own_usd=percentiles(own),
        rent_usd=percentiles(rent),
        own_usd_per_hour=percentiles(own / hours),
        rent_usd_per_hour=percentiles(rent / hours),
        build_share=float(np.mean(own < rent)),
    )


def break_even(fleet: BuiltFleet, terms: InputDraws) -> Floats:
    """Months of use for every draw; infinite where owning stays more expensive until `MAX_MONTHS`."""
    months = np.arange(0.25, MAX_MONTHS + 0.25, 0.25)[:, None]
    gap = owned_usd(fleet, terms, months) - rented_usd(fleet, terms, months)
    pays = gap <= 0
    stays = np.logical_and.accumulate(pays[::-1], axis=0)[::-1]
    first = np.argmax(stays, axis=0)
    return np.where(stays.any(axis=0), months[first, 0], np.inf)


def _pays(fleet: BuiltFleet, terms: InputDraws, months: float) -> float:
    return float(np.mean(owned_usd(fleet, terms, months) < rented_usd(fleet, terms, months)))


def percentiles(values: Floats) -> Three:
    low, mid, high = (float(v) for v in np.percentile(values, (10, 50, 90)))
    return low, mid, high


def _months(even: Floats) -> tuple[float | None, float | None, float | None]:
    """Percentiles of what may be infinite: by rank, not between ranks."""
    percentiles = [float(v) for v in np.percentile(even, (10, 50, 90), method="nearest")]
    low, mid, high = (v if math.isfinite(v) else None for v in percentiles)
    return low, mid, high


def _shares(
    fleet: BuiltFleet, terms: InputDraws
) -> tuple[float | None, float | None, float | None]:
    months = 12 * terms["life_years"]
    always = {
        **terms,
        "busy": np.ones_like(terms["busy"]),
        "contract_usd": np.full_like(terms["busy"], np.inf),
    }
    share = owned_usd(fleet, terms, months) / rented_usd(fleet, always, months)
    return _months(np.where(share <= 1, share, np.inf))


def _curve(fleet: BuiltFleet, terms: InputDraws, months: Floats) -> Curve:
    grid = months[:, None]
    own, rent = owned_usd(fleet, terms, grid), rented_usd(fleet, terms, grid)
    return Curve(
        months=tuple(float(m) for m in months),
        own=tuple(percentiles(row) for row in own),
        rent=tuple(percentiles(row) for row in rent),
    )


def _gap(fleet: BuiltFleet, terms: InputDraws) -> Floats:
    """Own less rent over the fleet's life, per GPU-hour used."""
    months = 12 * terms["life_years"]
    gap = owned_usd(fleet, terms, months) - rented_usd(fleet, terms, months)
    return np.asarray(gap / busy_hours(fleet, terms, months))


def _swings(fleet: BuiltFleet, rows: Mapping[str, CostInput]) -> tuple[Swing, ...]:
    swings = []
    for row in rows.values():
        ends = [middle_inputs(rows, **{row.name: end}) for end in (row.low, row.high)]
        low, high = (_months(break_even(fleet, terms))[1] for terms in ends)
        swings.append(
            Swing(
                input=row,
                gap_low=float(_gap(fleet, ends[0])[0]),
                gap_high=float(_gap(fleet, ends[1])[0]),
                months_low=low,
                months_high=high,
            )
        )
    return tuple(sorted(swings, key=lambda swing: -swing.swing))


def _spending(fleet: BuiltFleet, terms: InputDraws) -> dict[str, Three]:
    parts = owned_costs(fleet, terms, 12 * terms["life_years"])
    return {name: percentiles(usd) for name, usd in parts.items()}
