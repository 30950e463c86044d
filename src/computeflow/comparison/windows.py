"""When and where to start: windows of cheap or clean power, as far as there is data for them.

The catalog has yearly means by region, so it tells where, not when: `regions_by_energy`. With hourly
figures of the user's own (`read_hours`), `best_starts` tells when.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from computeflow.catalog import Catalog
from computeflow.errors import InputError
from computeflow.units import KWH_JOULES

MISSING = (
    "hourly prices and carbon of any region are not in the catalog: it has yearly means, so no start "
    "is better than another. Give --hourly FILE (hour, usd_per_kwh, grams_per_kwh)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCost:
    """The run's energy at one grid."""

    grid: str
    usd: float | None
    tonnes: float | None
    as_of: str


def regions_by_energy(joules: float, catalog: Catalog, names: Sequence[str] = ()) -> list[GridCost]:
    """Cleanest first; energy at the meter is taken as it is, PUE and all."""
    kwh = joules / KWH_JOULES
    rows = [catalog.grids[name] for name in names] or list(catalog.grids)
    found = [
        GridCost(
            grid=row.name,
            usd=None if row.usd_per_kwh is None else kwh * row.usd_per_kwh,
            tonnes=None if row.grams_co2e_per_kwh is None else kwh * row.grams_co2e_per_kwh / 1e6,
            as_of=row.carbon_as_of or row.as_of,
        )
        for row in rows
    ]
    return sorted(found, key=lambda one: (math.inf if one.tonnes is None else one.tonnes, one.grid))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    hour: str
    usd_per_kwh: float | None
    grams_per_kwh: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    hour: str
    mean: float
    """Of the window, $ or grams per kWh."""
    over_worst: float
    """Share that the worst start would cost more."""


def read_hours(text: str, where: str = "hours") -> list[Hour]:
    """CSV: hour, usd_per_kwh, grams_per_kwh; either figure may be empty."""
    reader = csv.DictReader(io.StringIO(text))
    if not {"hour", "usd_per_kwh", "grams_per_kwh"} <= set(reader.fieldnames or ()):
        raise InputError(f"{where}: columns hour, usd_per_kwh, grams_per_kwh are needed")
    found = []
    for line, row in enumerate(reader, start=2):
        try:
            price, grams = (float(row[k]) if row[k] else None
                            for k in ("usd_per_kwh", "grams_per_kwh"))  # fmt: skip
        except (TypeError, ValueError):
            raise InputError(f"{where}, line {line}: not a number") from None
        if any(v is not None and not math.isfinite(v) for v in (price, grams)):
            raise InputError(f"{where}, line {line}: not a finite number")
        found.append(Hour(hour=str(row["hour"]), usd_per_kwh=price, grams_per_kwh=grams))
    return found


def best_starts(hours: Sequence[Hour], seconds: float, field: str) -> Start:
    """The start whose window has the lowest mean of `field`, among those that the hours cover whole."""
    values = [getattr(hour, field) for hour in hours]
    length = max(math.ceil(seconds / 3600), 1)
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
