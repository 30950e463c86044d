"""When and where to start: windows of cheap or clean power, as far as there is data for them.

The catalog has yearly means by region, so it tells where, not when: `regions_by_energy`. With hourly
figures of the user's own (`read_hours`), `best_starts` tells when.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from computeflow.catalog import Catalog, Grid
from computeflow.economics import energy_of
from computeflow.errors import InputError
from computeflow.files.parsing import parse_csv, parse_number
from computeflow.units import HOUR_SECONDS

MISSING = (
    "The catalog has yearly means of price and carbon by region, not hourly ones, so no start is "
    "better than another. Give --hourly FILE (hour, usd_per_kwh, grams_per_kwh)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCost:
    """The run's energy on one grid."""

    grid: str
    usd: float | None
    tonnes: float | None
    as_of: str


def regions_by_energy(joules: float, catalog: Catalog, names: Sequence[str] = ()) -> list[GridCost]:
    """Energy by grid, cleanest first; energy at the meter is used as it is, PUE included."""
    rows = [catalog.grids[name] for name in names] or list(catalog.grids)
    costs = [_grid_cost(joules, row) for row in rows]
    return sorted(
        costs, key=lambda cost: (math.inf if cost.tonnes is None else cost.tonnes, cost.grid)
    )


def _grid_cost(joules: float, grid: Grid) -> GridCost:
    energy = energy_of(joules, grid)
    return GridCost(
        grid=grid.name,
        usd=energy.usd,
        tonnes=None if energy.kg_co2e is None else energy.kg_co2e / 1e3,
        as_of=grid.carbon_as_of or grid.as_of,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    hour: str
    usd_per_kwh: float | None
    grams_per_kwh: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    hour: str
    mean: float
    """Mean of the window, $ or grams per kWh."""
    over_worst: float
    """Share that the worst start would cost more."""


def read_hours(text: str, where: str = "hours") -> list[Hour]:
    """CSV: hour, usd_per_kwh, grams_per_kwh; either figure may be empty."""
    records = parse_csv(text, where)
    if not {"hour", "usd_per_kwh", "grams_per_kwh"} <= records[0][1].keys():
        raise InputError(f"{where}: columns hour, usd_per_kwh, grams_per_kwh are needed")
    hours = []
    for line, row in records:
        price, grams = (
            parse_number(row[name], f"{where}: line {line}: {name}") if row[name] else None
            for name in ("usd_per_kwh", "grams_per_kwh")
        )
        hours.append(Hour(hour=row["hour"], usd_per_kwh=price, grams_per_kwh=grams))
    return hours


def find_starts(hours: Sequence[Hour], seconds: float, where: str = "hours") -> dict[str, Start]:
    """Best starts by price and by carbon, where every hour has a figure."""
    starts = {
        what: best_starts(hours, seconds, field)
        for what, field in (("price", "usd_per_kwh"), ("carbon", "grams_per_kwh"))
        if hours and all(getattr(hour, field) is not None for hour in hours)
    }
    if not starts:
        raise InputError(f"{where}: no column has a figure for every hour")
    return starts


def best_starts(hours: Sequence[Hour], seconds: float, field: str) -> Start:
    """The start whose window has the lowest mean of `field`, among those that the hours cover whole."""
    values = [getattr(hour, field) for hour in hours]
    length = max(math.ceil(seconds / HOUR_SECONDS), 1)
    if any(value is None for value in values):
        raise InputError(f"{field}: some hours have none")
    if length > len(values):
        raise InputError(f"a run of {length:,} hours does not fit in {len(values):,} hours of data")
    total = math.fsum(values[:length])
    sums = [total]
    for end in range(length, len(values)):
        total += values[end] - values[end - length]
        sums.append(total)
    best = min(range(len(sums)), key=lambda n: sums[n])
    worst = max(sums)
    over = (worst - sums[best]) / abs(sums[best]) if sums[best] else math.inf
    return Start(hour=hours[best].hour, mean=sums[best] / length, over_worst=over)
