"""Published costs of owning, recomputed with their sources' inputs: `check_published`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from computeflow.catalog import Catalog
from computeflow.catalog.rows import CatalogRow
from computeflow.comparison.build_or_rent.cost_inputs import (
    Floats,
    InputDraws,
    draw_inputs,
    inputs_for,
    load_rows,
    servers,
)
from computeflow.comparison.build_or_rent.ownership_costs import (
    MONTH_HOURS,
    BuiltFleet,
    Hall,
    capital_costs,
    fleet_of,
    monthly_costs,
    owned_usd,
    rented_usd,
)
from computeflow.comparison.machines import machine_of
from computeflow.comparison.rents import find_rents
from computeflow.errors import UnknownNameError

_GIGAWATT = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigure(CatalogRow):
    kind: ClassVar[str] = "published"
    check: str
    accelerator: str
    gpus: int
    """0: as many as a gigawatt at the meter takes."""
    hall: Hall = "colocation"
    unit: str
    low: float
    high: float
    given: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputedFigure:
    published: PublishedFigure
    low: float
    middle: float
    high: float
    """P10, P50 and P90 over the inputs that the source leaves open."""

    @property
    def agrees(self) -> bool:
        """Whether the published range and ours overlap."""
        return self.low <= self.published.high and self.published.low <= self.high

    @property
    def off(self) -> float:
        """Our middle over the middle of what was published, less one."""
        return self.middle / ((self.published.low + self.published.high) / 2) - 1


def check_published(catalog: Catalog, *, draws: int = 400, seed: int = 0) -> list[RecomputedFigure]:
    return [
        _recomputed(row, catalog, draws, seed)
        for row in load_rows(PublishedFigure, "published_tco.toml")
    ]


def _recomputed(row: PublishedFigure, catalog: Catalog, draws: int, seed: int) -> RecomputedFigure:
    rents = find_rents(catalog, row.accelerator)
    machine = machine_of(row.accelerator, catalog)
    rows = inputs_for(row.accelerator, rents, row.given, liquid=machine.liquid)
    terms = draw_inputs(rows, draws, seed)
    fleet = fleet_of(
        machine, row.gpus or 1, all_in=servers()[row.accelerator].all_in, hall=row.hall
    )
    if row.gpus == 0:
        size = int(_GIGAWATT / (fleet.rated_watts * rows["pue"].value))
        fleet = fleet_of(machine, size, all_in=fleet.all_in, hall=row.hall)
    if row.check not in CHECKS:
        raise UnknownNameError("check", row.check, CHECKS)
    low, middle, high = np.percentile(CHECKS[row.check](fleet, terms), (10, 50, 90))
    return RecomputedFigure(published=row, low=float(low), middle=float(middle), high=float(high))


def _capital(fleet: BuiltFleet, terms: InputDraws) -> Floats:
    return np.asarray(sum(capital_costs(fleet, terms).values()))


def _capital_per_gpu(fleet: BuiltFleet, terms: InputDraws) -> Floats:
    return _capital(fleet, terms) / fleet.gpus


def _running(fleet: BuiltFleet, terms: InputDraws) -> Floats:
    return np.asarray(sum(monthly_costs(fleet, terms).values())) / fleet.gpus / MONTH_HOURS


def _all_per_hour(fleet: BuiltFleet, terms: InputDraws) -> Floats:
    months = 12 * terms["life_years"]
    hours = fleet.gpus * MONTH_HOURS * months * terms["busy"]
    return owned_usd(fleet, terms, months) / hours


def _year(fleet: BuiltFleet, terms: InputDraws) -> Floats:
    """Straight-line, without interest: as the sources' models have it."""
    months = 12 * terms["life_years"]
    free = {
        **terms,
        "capital_rate": np.zeros_like(months),
        "resale_36_months": np.full_like(months, 1e-9),
    }
    return owned_usd(fleet, free, months) / terms["life_years"]


def _busy_even(fleet: BuiltFleet, terms: InputDraws) -> Floats:
    months = 12 * terms["life_years"]
    ones = np.ones_like(months)
    listed = {**terms, "busy": ones, "contract_usd": np.inf * ones}
    return owned_usd(fleet, terms, months) / rented_usd(fleet, listed, months)


CHECKS: dict[str, Callable[[BuiltFleet, InputDraws], Floats]] = {
    "capital": _capital,
    "capital_per_gpu": _capital_per_gpu,
    "running_per_hour": _running,
    "all_per_hour": _all_per_hour,
    "gigawatt_capital": _capital,
    "gigawatt_year": _year,
    "busy_even": _busy_even,
}
