"""Known facts of a provider beyond its prices: networks, sites, limits, egress, regions.

`load_terms` gives `ProviderTable`, the packaged rows overridden by the user's. A provider without a
row, or a field that is None, is unknown; nothing is guessed here.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from typing import ClassVar

from computeflow import codec
from computeflow.catalog import Catalog, CatalogRow, Grid, Offer
from computeflow.comparison import DATA
from computeflow.errors import InputError, UnknownNameError
from computeflow.files.parsing import parse_toml
from computeflow.files.reading import read_text
from computeflow.units import DAY_SECONDS

MAX_PREEMPTIONS = 24
"""Most preemptions of a machine in a day that are simulated."""
MAX_WAIT_SECONDS = 30 * DAY_SECONDS
"""Longest wait for another machine."""
EU = frozenset(
    {
        "austria", "belgium", "bulgaria", "croatia", "cyprus", "czechia", "denmark", "estonia",
        "finland", "france", "germany", "greece", "hungary", "ireland", "italy", "latvia",
        "lithuania", "luxembourg", "malta", "netherlands", "poland", "portugal", "romania",
        "slovakia", "slovenia", "spain", "sweden",
    }
)  # fmt: skip
"""Members of the European Union (european-union.europa.eu, 2026)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Properties of a site that a simulated run depends on; None: unknown, and assumed to be usual."""

    tier: str | None = None
    cooling: str | None = None
    storage: str | None = None
    """Rows of the catalog."""
    failures: str | None = None
    """Row of the simulator whose failure rate its machines have."""
    replace_seconds: float | None = None
    """Median time until a failed or preempted machine is replaced."""
    replace_spread: float | None = None
    """Standard deviation of its logarithm."""
    preemptions_per_node_day: float | None = None
    """Preemptions of its spot machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderTerms(CatalogRow):
    """Known terms of one provider, by its name."""

    kind: ClassVar[str] = "terms"
    facility: str | None = None
    """Row of the catalog whose PUE is reported for its sites."""
    pue: float | None = None
    """Measured at its sites; goes before the facility's."""
    tier: str | None = None
    cooling: str | None = None
    storage: str | None = None
    """Rows of the catalog: what simulated goodput follows from."""
    failures: str | None = None
    replace_seconds: float | None = None
    replace_spread: float | None = None
    support: str = ""
    most_gpus: int | None = None
    """GPUs of one contiguous cluster."""
    most_gpus_reserved: int | None = None
    """The same, on reserved terms."""
    one_machine: bool = False
    """Machines are not joined at all."""
    cluster_product: str = ""
    """Product whose machines are joined; the other types of the provider are single machines."""
    lead: str = ""
    """How and when capacity is available."""
    egress_tiers: tuple[tuple[float, float], ...] = ()
    """Bytes of a month up to which a price in $ per GB holds; empty: unknown."""
    preemptions_per_node_day: float | None = None
    """As in `Quality`; None: as `Market` has it."""

    def __post_init__(self) -> None:
        super(ProviderTerms, self).__post_init__()
        for what in ("most_gpus", "most_gpus_reserved"):
            count = getattr(self, what)
            if count is not None and count < 1:
                raise InputError(f"{self.name}: {what} = {count}: one or more")
        bounds = {
            "pue": (1, 3),
            "replace_seconds": (1, MAX_WAIT_SECONDS),
            "replace_spread": (0, 3),
            "preemptions_per_node_day": (0, MAX_PREEMPTIONS),
        }
        for what, (low, high) in bounds.items():
            value = getattr(self, what)
            if value is not None and not low <= value <= high:
                raise InputError(f"{self.name}: {what} = {value:g}: {low:g} to {high:g}")
        if not _are_tiers(self.egress_tiers):
            raise InputError("egress_tiers: rising bytes, each with $ per GB from zero up")

    @property
    def quality(self) -> Quality:
        return Quality(**{each.name: getattr(self, each.name) for each in fields(Quality)})


def _are_tiers(tiers: Sequence[tuple[float, float]]) -> bool:
    """Never with nan."""
    ends = [0.0, *(end for end, _ in tiers)]
    rising = all(low < high for low, high in pairwise(ends))
    return rising and all(0 <= usd < math.inf for _, usd in tiers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network(CatalogRow):
    """How machines of some types are joined, where the type is no node of the catalog."""

    kind: ClassVar[str] = "network"
    provider: str
    instances: tuple[str, ...]
    """Names of types, with * for any letters."""
    node: str | None = None
    """Node of the catalog with the same ports."""
    gigabits_per_device: float | None = None
    devices: int | None = None
    """Devices of one machine, where the price is listed per device."""
    joined: bool = True
    """False: such machines do not train together at all."""

    def __post_init__(self) -> None:
        super(Network, self).__post_init__()
        if self.joined and (self.node is None) == (self.gigabits_per_device is None):
            raise InputError(f"{self.name}: give node or gigabits_per_device")
        if self.gigabits_per_device is not None and not 0.1 <= self.gigabits_per_device <= 1e4:
            raise InputError(
                f"{self.name}: {self.gigabits_per_device} Gb/s a device: 0.1 to 10,000"
            )

    def has(self, offer: Offer) -> bool:
        return offer.provider == self.provider and any(
            fnmatchcase(offer.instance, pattern) for pattern in self.instances
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    provider: str
    region: str
    grid: str
    country: str
    source: str
    as_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderTable:
    """All rows; later ones of the same name go before earlier ones."""

    terms: dict[str, ProviderTerms]
    networks: tuple[Network, ...]

    def of(self, provider: str) -> ProviderTerms | None:
        return self.terms.get(provider)

    def network(self, offer: Offer) -> Network | None:
        return next((row for row in self.networks if row.has(offer)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    terms: tuple[ProviderTerms, ...] = ()
    network: tuple[Network, ...] = field(default=())


def load_terms(
    text: str | None = None, where: str = "terms", *, providers: Iterable[str] | None = None
) -> ProviderTable:
    """The packaged rows, with those of a user's file in the same form over them, field by field.

    `providers`: names that the file may speak of; None: any.
    """
    packaged = _packaged()
    if text is None:
        return packaged
    data = parse_toml(text, where, finite=False)  # the last tier of egress has no end
    own = codec.decode(_File, data, where)
    if providers is not None:
        known = {*providers, *packaged.terms}
        for name in (*(row.name for row in own.terms), *(row.provider for row in own.network)):
            if name not in known:
                raise UnknownNameError("provider", name, sorted(known))
    terms = dict(packaged.terms)
    for row, stated in zip(own.terms, data.get("terms", ()), strict=True):
        terms[row.name] = _over(terms.get(row.name), row, stated)
    return ProviderTable(terms=terms, networks=(*own.network, *packaged.networks))


def _over(under: ProviderTerms | None, row: ProviderTerms, stated: Iterable[str]) -> ProviderTerms:
    """A row's statements over earlier ones; both are named as sources."""
    if under is None:
        return row
    changes = {name: getattr(row, name) for name in stated}
    return replace(under, **changes | {"source": f"{row.source}; else {under.source}"})


@cache
def _packaged() -> ProviderTable:
    data = parse_toml(read_text(DATA / "providers.toml"), "providers.toml", finite=False)
    rows = codec.decode(_File, data, "providers.toml")
    return ProviderTable(terms={row.name: row for row in rows.terms}, networks=rows.network)


@cache
def regions() -> tuple[Region, ...]:
    rows = csv.DictReader(read_text(DATA / "regions.csv").splitlines())
    return tuple(Region(**row) for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLocation:
    """None: the region's name does not tell."""

    grid: Grid | None
    country: str | None


def where_is(catalog: Catalog, provider: str, region: str) -> RegionLocation:
    """A cloud's region by name, then the packaged rows, then a country in the region's own name."""
    grid = catalog.grids.get(f"{provider}:{region}")
    row = next(
        (r for r in regions() if r.provider == provider and fnmatchcase(region, r.region)), None
    ) or _by_code(region)
    if row is not None:
        grid = grid or (catalog.grids[row.grid] if row.grid else None)
        return RegionLocation(grid=grid, country=row.country or None)
    grid = grid or _by_name(catalog, region)
    return RegionLocation(grid=grid, country=country_of(grid))


def _by_code(region: str) -> Region | None:
    codes = re.findall(r"\b[A-Z]{2}\b", region)
    return next((r for r in regions() if r.provider == "iso" and r.region in codes), None)


def _by_name(catalog: Catalog, region: str) -> Grid | None:
    """By a country in it: oslo-norway-3 is in Norway."""
    for word in re.split(r"[^a-z]+", region.casefold()):
        grid = catalog.grids.get(word) if len(word) > 2 else None
        if grid is not None and grid.scope == "country":
            return grid
    return None


def country_of(grid: Grid | None) -> str | None:
    if grid is None or grid.scope not in ("us_state", "country"):
        return None
    return "united-states" if grid.scope == "us_state" else grid.name
