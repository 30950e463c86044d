"""Sites: what a tier means for a run, and two sites to compare, every figure with its source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

from computeflow import codec
from computeflow.catalog import Catalog
from computeflow.catalog.files import packaged_rows
from computeflow.catalog.rows import CatalogRow, Cooling, UptimeTier
from computeflow.errors import InputError, UnknownNameError
from computeflow.files.parsing import parse_toml
from computeflow.files.reading import read_text
from computeflow.scheduling.policy import Rule
from computeflow.simulation.conditions import Basis, Input, inputs
from computeflow.simulation.failures import DATA
from computeflow.simulation.run_validation import SourcedRange
from computeflow.units import HOUR_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Outages(CatalogRow):
    kind: ClassVar[str] = "outages"
    per_year: float
    low: float
    high: float


@cache
def outages() -> dict[str, Outages]:
    return {row.name: row for row in packaged_rows(DATA / "outages.toml", "outages", Outages)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle(CatalogRow):
    kind: ClassVar[str] = "throttle"
    value: float
    low: float
    high: float
    basis: Basis


@cache
def throttles() -> dict[str, Throttle]:
    return {row.name: row for row in packaged_rows(DATA / "coolings.toml", "throttle", Throttle)}


def _cooling_inputs(cooling: Cooling) -> dict[str, Input]:
    """Inputs by how much this cooling lengthens every step."""
    known = throttles().get(cooling.name)
    if known is None:
        raise UnknownNameError("cooling", cooling.name, throttles())
    row = replace(
        inputs()["throttle"],
        value=known.value,
        low=known.low,
        high=known.high,
        basis=known.basis,
        source=known.source,
        as_of=known.as_of,
    )
    return {row.name: row}


def _tier_inputs(tier: UptimeTier) -> dict[str, Input]:
    """Inputs of a site of this tier: its downtime of a year, spread over the assumed events."""
    known = outages().get(tier.name)
    if known is None:
        raise UnknownNameError("tier", tier.name, outages())
    down = tier.downtime_seconds_per_year
    events = replace(
        inputs()["outages_per_year"],
        value=known.per_year,
        low=known.low,
        high=known.high,
        source=known.source,
        as_of=known.as_of,
    )
    length = replace(
        inputs()["outage_seconds"],
        value=down / known.per_year,
        low=down / known.high,
        high=down / known.low,
        as_of=known.as_of,
        source=f"availability of {tier.name} over the number of events, "
        f"{down / HOUR_SECONDS:.1f} hours a year",
    )
    return {row.name: row for row in (events, length)}


def site_inputs(tier: str | None, cooling: str | None, catalog: Catalog) -> dict[str, Input]:
    """Inputs from a site's tier and cooling, in place of the packaged ones."""
    rows = _tier_inputs(catalog.tiers[tier]) if tier else {}
    return rows | (_cooling_inputs(catalog.coolings[cooling]) if cooling else {})


def cooling_conditions(cooling: Cooling) -> dict[str, float]:
    return {name: row.value for name, row in _cooling_inputs(cooling).items()}


def tier_conditions(tier: UptimeTier) -> dict[str, float]:
    return {name: row.value for name, row in _tier_inputs(tier).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioJob:
    model: str
    accelerator: str
    gpus: int
    tokens: float
    global_batch: int
    seq_len: int
    target: float
    """Share of the expected throughput at which the cluster counts as up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioPrice:
    """US dollars per GPU-hour."""

    value: float
    low: float
    high: float
    source: str
    as_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSite(CatalogRow):
    kind: ClassVar[str] = "site"
    source: str = "assumed; each figure has its own source"
    as_of: str = "2026"
    doc: str
    tier: str
    oversubscription: float
    evict: Rule
    lemon_failures: int | None = None
    failures: SourcedRange
    conditions: dict[str, SourcedRange]
    bringup: dict[str, SourcedRange]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    story: ScenarioJob
    price: ScenarioPrice
    site: tuple[ScenarioSite, ...]

    def __post_init__(self) -> None:
        if len(self.site) != 2:
            raise InputError(f"{len(self.site)} sites: this compares two")


def load_sites(text: str | None = None, where: str = "sites") -> Scenario:
    data = parse_toml(read_text(DATA / "sites.toml") if text is None else text, where)
    _refuse_offers(data, where)
    _rename_eviction(data)
    return codec.decode(Scenario, data, where)


def _rename_eviction(data: dict[str, Any]) -> None:
    """Read the old word for `auto`, for one version."""
    listed = data.get("site")
    for site in listed if isinstance(listed, list) else []:
        if isinstance(site, dict) and site.get("evict") == "worth":
            site["evict"] = "auto"


def _refuse_offers(data: dict[str, Any], where: str) -> None:
    """`compare` takes sites, too, in another form: machines at a price, and no job."""
    listed = data.get("site")
    sites = listed if isinstance(listed, list) else []
    if "story" not in data and any(isinstance(one, dict) and "accelerator" in one for one in sites):
        raise InputError(
            f"{where}: this is a file for `compare --sites` (machines and their price). Two sites for "
            "one job have [story], [price] and two [[site]] with failures, conditions and bringup: "
            "docs/simulate.md"
        )
