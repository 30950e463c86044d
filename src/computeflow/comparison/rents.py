"""Rent of a GPU-hour, from the catalog's offers: the spread over one price per provider."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal

import numpy as np

from computeflow.catalog import Catalog, Offer
from computeflow.catalog.files import packaged_rows
from computeflow.catalog.rows import CatalogRow
from computeflow.comparison import DATA
from computeflow.economics import is_stale

YEAR_DISCOUNT = (0.28, 0.365, 0.45)
"""Off on-demand for a year's commitment: 28 to 45 % (yobitel; digiterialabs 35 to 40 %)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rent:
    """USD per GPU-hour: P10, median and P90 over providers, or the ends of a published range."""

    low: float
    middle: float
    high: float
    providers: int
    dates: tuple[str, ...]
    """Date of each price, the oldest first."""
    source: str

    @property
    def oldest(self) -> str:
        return self.dates[0]

    @property
    def newest(self) -> str:
        return self.dates[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rents:
    accelerator: str
    on_demand: Rent | None
    contract: Rent | None
    """A contract of about a year, paid whether used or not."""
    spot: Rent | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract(CatalogRow):
    kind: ClassVar[str] = "contract"
    value: float
    low: float
    high: float


@cache
def contracts() -> dict[str, Contract]:
    rows = packaged_rows(DATA / "contracts.toml", "contract", Contract)
    return {row.name: row for row in rows}


def age_text(dates: Sequence[str], today: datetime.date) -> str:
    """The dates of prices, and how many of them are old by now."""
    old = sum(is_stale(date, today) for date in dates)
    span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return f"{span}, {old} of {len(dates)} old"


def find_rents(catalog: Catalog, accelerator: str) -> Rents:
    name = catalog.accelerators[accelerator].name
    offers = [o for o in catalog.offers if catalog.accelerators[o.accelerator].name == name]
    listed = _spread(offers, "on-demand")
    return Rents(
        accelerator=name,
        on_demand=listed,
        contract=_contract(name, listed),
        spot=_spread(offers, "spot"),
    )


def _spread(offers: list[Offer], term: Literal["on-demand", "spot"]) -> Rent | None:
    """The spread over the cheapest region of each provider."""
    best: dict[str, Offer] = {}
    for offer in offers:
        known = best.get(offer.provider)
        if offer.term == term and (
            known is None or offer.usd_per_device_hour < known.usd_per_device_hour
        ):
            best[offer.provider] = offer
    if not best:
        return None
    prices = [offer.usd_per_device_hour for offer in best.values()]
    low, middle, high = (float(v) for v in np.percentile(prices, (10, 50, 90)))
    dates = tuple(sorted(offer.as_of for offer in best.values()))
    return Rent(
        low=low,
        middle=middle,
        high=high,
        providers=len(best),
        dates=dates,
        source=f"catalog offers, {term}, the cheapest region of each of {len(best)} providers",
    )


def _contract(name: str, listed: Rent | None) -> Rent | None:
    row = contracts().get(name)
    if row is not None:
        return Rent(
            low=row.low,
            middle=row.value,
            high=row.high,
            providers=0,
            dates=(row.as_of,),
            source=row.source,
        )
    if listed is None:
        return None
    least, usual, most = YEAR_DISCOUNT
    return Rent(
        low=listed.low * (1 - most),
        middle=listed.middle * (1 - usual),
        high=listed.high * (1 - least),
        providers=listed.providers,
        dates=listed.dates,
        source="on-demand less 28 to 45 % for a year (yobitel, digiterialabs)",
    )
