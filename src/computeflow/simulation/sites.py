"""Sites: what a tier means for a run, and two sites to compare, every figure with its source."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal

from computeflow import codec
from computeflow.catalog.files import packaged_rows
from computeflow.catalog.rows import Cooling, Row, Tier
from computeflow.errors import InputError, UnknownNameError
from computeflow.simulation.conditions import Basis
from computeflow.simulation.failures import DATA
from computeflow.simulation.published import Known


@dataclass(frozen=True, slots=True, kw_only=True)
class Outages(Row):
    kind: ClassVar[str] = "outages"
    per_year: float
    low: float
    high: float


@cache
def outages() -> dict[str, Outages]:
    return {row.name: row for row in packaged_rows(DATA / "outages.toml", "outages", Outages)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle(Row):
    kind: ClassVar[str] = "throttle"
    value: float
    low: float
    high: float
    basis: Basis


@cache
def throttles() -> dict[str, Throttle]:
    return {row.name: row for row in packaged_rows(DATA / "coolings.toml", "throttle", Throttle)}


def cooling_conditions(cooling: Cooling) -> dict[str, float]:
    """By how much this cooling lengthens every step."""
    known = throttles().get(cooling.name)
    if known is None:
        raise UnknownNameError("cooling", cooling.name, throttles())
    return {"throttle": known.value}


def tier_conditions(tier: Tier) -> dict[str, float]:
    """Conditions of a site of this tier: its downtime of a year, spread over the assumed events."""
    known = outages().get(tier.name)
    if known is None:
        raise UnknownNameError("tier", tier.name, outages())
    return {
        "outages_per_year": known.per_year,
        "outage_seconds": tier.downtime_seconds_per_year / known.per_year,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    model: str
    accelerator: str
    gpus: int
    tokens: float
    global_batch: int
    seq_len: int
    target: float
    """Share of the expected throughput at which the cluster counts as up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars per GPU-hour."""

    value: float
    low: float
    high: float
    source: str
    as_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Site(Row):
    kind: ClassVar[str] = "site"
    source: str = "assumed; each figure has its own source"
    as_of: str = "2026"
    doc: str
    tier: str
    oversubscription: float
    evict: Literal["worth", "always", "never"]
    lemon_failures: int | None = None
    failures: Known
    conditions: dict[str, Known]
    bringup: dict[str, Known]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    story: Story
    price: Price
    site: tuple[Site, ...]

    def __post_init__(self) -> None:
        if len(self.site) != 2:
            raise InputError(f"{len(self.site)} sites: this compares two")


def load_sites(text: str | None = None) -> Sites:
    source = (DATA / "sites.toml").read_text(encoding="utf-8") if text is None else text
    try:
        data: Any = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"sites: not TOML: {error}") from None
    return codec.decode(Sites, data, "sites")
