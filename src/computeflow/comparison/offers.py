"""`Offering`: one machine type of a provider in a region, with its prices and known properties.

`offerings` groups the catalog's prices and joins what plans and simulations need: the network between
machines (known, or an assumption that is said), the site, the grid, the largest cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from computeflow.catalog import Catalog, Grid, Offer
from computeflow.catalog.lookup import find_offers
from computeflow.comparison.planner import MachineShape
from computeflow.comparison.providers import (
    EU,
    Network,
    ProviderTable,
    ProviderTerms,
    Quality,
    country_of,
    where_is,
)
from computeflow.comparison.rents import Contract, contracts
from computeflow.errors import InputError, UnknownNameError

ASSUMED_NIC = 100e9 / 8 / 8
"""Bytes per second of one device where no network is published: 100 Gb/s Ethernet for a machine of
eight, as GCP's A2 has. An assumption, and said wherever it is used."""
CONTRACT = "contract"
"""Stands for the provider of a contract at a market price."""
YEAR = "1y"
"""Commitment that is paid for a whole year."""
_NO_PROVIDER = ("none",)
ODD = 0.4
"""Share of the providers' median price of a device on a term under which a price is doubted: price
lists of prices have placeholders and slips (SkyPilot's have had $0.01 floors and $700 TPUs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offering:
    provider: str
    instance: str
    accelerator: str
    devices: int
    """Devices of one machine."""
    region: str
    prices: tuple[Offer, ...]
    """At most one of each term and commitment."""
    shape: MachineShape
    network: str
    """Description for people."""
    network_known: bool
    joined: bool
    """Whether machines train together at all."""
    access: str
    orchestration: str
    terms: ProviderTerms | None
    grid: Grid | None
    country: str | None
    own: bool = False
    """A site of the user's own, not a rented offer."""
    limit: str = ""
    """What keeps the largest cluster from being larger, where that is known."""

    @property
    def name(self) -> str:
        return f"{self.provider}/{self.instance} {self.region}"

    @property
    def most_gpus(self) -> int | None:
        """GPUs of the largest contiguous cluster; None: unknown."""
        if not self.joined:
            return self.devices
        return None if self.terms is None else self.terms.most_gpus

    @property
    def apart(self) -> str:
        """Why a job has one machine at most; empty: machines train together."""
        if self.joined:
            return ""
        product = "" if self.terms is None else self.terms.cluster_product
        return "and such machines are not joined" + (
            f": its {product} are" if product else " for training"
        )

    def sells(self, term: str) -> bool:
        return any(price.term == term for price in self.prices)

    @property
    def quality(self) -> Quality:
        return Quality() if self.terms is None else self.terms.quality


def offerings(
    catalog: Catalog,
    book: ProviderTable,
    *,
    providers: Iterable[str] = (),
    regions: Iterable[str] = (),
    accelerators: Iterable[str] = (),
    assumed_nic: float | None = ASSUMED_NIC,
) -> list[Offering]:
    """Offerings of matching prices; `assumed_nic` None leaves out machines with an unknown network."""
    groups: dict[tuple[str, str, str, int, str], list[Offer]] = {}
    for offer in choose_offers(catalog, providers, regions, accelerators):
        key = (offer.provider, offer.instance, offer.accelerator, offer.count, offer.region)
        groups.setdefault(key, []).append(offer)
    every = [_offering(catalog, book, prices, assumed_nic) for prices in groups.values()]
    return [offering for offering in every if offering.network_known or assumed_nic is not None]


def gather_offers(
    catalog: Catalog,
    book: ProviderTable,
    own: Sequence[Offering],
    *,
    providers: Sequence[str] = (),
    regions: Sequence[str] = (),
    accelerators: Sequence[str] = (),
    countries: Sequence[str] = (),
    assumed_nic: float | None = ASSUMED_NIC,
) -> list[Offering]:
    """Sites of the user's own first, then what is rented: of all providers, or of those named beside
    the sites; "none" is none of them.
    """
    sites = {offer.provider for offer in own}
    others = tuple(name for name in providers if name not in sites)
    rented: list[Offering] = []
    if not own or (others != _NO_PROVIDER and (others or not providers)):
        rented = offerings(
            catalog,
            book,
            providers=others,
            regions=regions,
            accelerators=accelerators,
            assumed_nic=assumed_nic,
        )
        if not providers and not regions and not countries:
            rented += contract_offerings(catalog, accelerators)
    return in_countries([*own, *rented], catalog, countries)


def contract_offerings(catalog: Catalog, accelerators: Sequence[str] = ()) -> list[Offering]:
    """Contracts of a year at market prices, of no provider in particular, on each device's usual
    node.
    """
    wanted = {catalog.accelerators[name].name for name in accelerators}
    rows = [row for row in contracts().values() if not wanted or row.name in wanted]
    return [_contract_offering(catalog, row) for row in rows]


def _contract_offering(catalog: Catalog, row: Contract) -> Offering:
    device = catalog.accelerators[row.name]
    node = catalog.nodes[device.node] if device.node is not None else None
    assert node is not None and node.nics and node.nic_bytes_per_second, "every row has a node"
    rate = node.nics * node.nic_bytes_per_second / node.count
    price = Offer(
        name=f"{CONTRACT}/{node.name}",
        provider=CONTRACT,
        instance=node.name,
        accelerator=device.name,
        count=node.count,
        region="any",
        term="reserved",
        commitment=YEAR,
        usd_per_hour=node.count * row.value,
        source=row.source,
        as_of=row.as_of,
    )
    return Offering(
        provider=CONTRACT,
        instance=node.name,
        accelerator=device.name,
        devices=node.count,
        region="any",
        prices=(price,),
        shape=MachineShape(accelerator=device.name, devices=node.count, nic_bytes_per_second=rate),
        network=f"{rate * 8e-9:,.4g} Gb/s a device, as its usual node has",
        network_known=True,
        joined=True,
        access="unknown",
        orchestration="unknown",
        terms=None,
        grid=None,
        country=None,
    )


def usual_prices(catalog: Catalog) -> dict[tuple[str, str], float]:
    """Dollars per device-hour, by device and term: the median of the providers' own medians."""
    every: dict[tuple[str, str], dict[str, list[float]]] = {}
    for offer in catalog.offers:
        sellers = every.setdefault((offer.accelerator, offer.term), {})
        sellers.setdefault(offer.provider, []).append(offer.usd_per_device_hour)
    return {key: median(map(median, sellers.values())) for key, sellers in every.items()}


def choose_offers(
    catalog: Catalog, providers: Iterable[str], regions: Iterable[str], accelerators: Iterable[str]
) -> list[Offer]:
    """Prices that fit one of the names of each kind; a name that fits nothing is an error."""
    chosen = list(catalog.offers)
    wanted = {
        "provider": list(providers),
        "region": list(regions),
        "accelerator": list(accelerators),
    }
    for kind, names in wanted.items():
        if names:
            keys = {o.key for name in names for o in find_offers(catalog, **{kind: name})}
            chosen = [offer for offer in chosen if offer.key in keys]
    if not chosen:
        said = ", ".join(f"{kind} {' or '.join(names)}" for kind, names in wanted.items() if names)
        raise InputError(f"no offer has all of: {said}")
    return chosen


def in_countries(
    offers: Sequence[Offering], catalog: Catalog, countries: Sequence[str]
) -> list[Offering]:
    """Offers in one of the countries ("eu" for its members); without any, all. Unknown is out."""
    meant = _read_countries(catalog, countries)
    left = [offering for offering in offers if not countries or offering.country in meant]
    if offers and not left:
        there = sorted({offering.country or "unknown" for offering in offers})
        raise InputError(
            f"no such offer lies in {', '.join(countries)}; they lie in {', '.join(there)}"
        )
    return left


def _read_countries(catalog: Catalog, countries: Iterable[str]) -> frozenset[str]:
    """Countries by name, "eu" for its members."""
    names: set[str] = set()
    known = {row.name: row.name for row in catalog.grids if row.scope == "country"}
    for text in countries:
        name = "-".join(text.casefold().split())
        if name in ("eu", "european-union"):
            names |= EU
            continue
        row = catalog.grids.get(name)
        if row is None or row.scope != "country":
            raise UnknownNameError("country", text, {**known, "eu": "eu"}, hint="or eu")
        names.add(row.name)
    return frozenset(names)


def grids_in(catalog: Catalog, countries: Iterable[str]) -> list[str]:
    """Names of grids there; without any country, all."""
    meant = _read_countries(catalog, countries)
    return [row.name for row in catalog.grids if not meant or country_of(row) in meant]


def _offering(
    catalog: Catalog, book: ProviderTable, prices: list[Offer], assumed_nic: float | None
) -> Offering:
    offer = prices[0]
    seller = catalog.providers.get(offer.provider)
    where = where_is(catalog, offer.provider, offer.region)
    row, terms = book.network(offer), book.of(offer.provider)
    joined = _is_joined(catalog, row, terms, offer)
    shape, words, known = _network(catalog, row, offer, assumed_nic, joined=joined)
    return Offering(
        provider=offer.provider,
        instance=offer.instance,
        accelerator=offer.accelerator,
        devices=shape.devices,
        region=offer.region,
        prices=tuple(sorted(prices, key=lambda o: (o.term, o.commitment, o.usd_per_hour))),
        shape=shape,
        network=words,
        network_known=known,
        joined=joined,
        access=seller.access if seller else "unknown",
        orchestration=(seller.orchestration if seller else "") or "unknown",
        terms=terms,
        grid=where.grid,
        country=where.country,
    )


def _is_joined(
    catalog: Catalog, row: Network | None, terms: ProviderTerms | None, offer: Offer
) -> bool:
    """Whether such machines train together.

    A provider that sells joined machines as a product of its own says of which types that is; its
    other types are single machines.
    """
    if row is not None:
        return row.joined
    if terms is None:
        return True
    return not terms.one_machine and (not terms.cluster_product or offer.instance in catalog.nodes)


def _network(
    catalog: Catalog, row: Network | None, offer: Offer, assumed_nic: float | None, *, joined: bool
) -> tuple[MachineShape, str, bool]:
    """The network of the type's own node, or as the provider states it, or assumed."""
    devices, known = _devices_and_rate(catalog, row, offer)
    rate = known or assumed_nic or ASSUMED_NIC
    name = catalog.accelerators[offer.accelerator].name
    shape = MachineShape(accelerator=name, devices=devices, nic_bytes_per_second=rate)
    if not joined:
        return shape, "none: such machines are not joined", True
    gigabits = f"{rate * 8e-9:,.4g} Gb/s a device"
    return shape, gigabits if known else f"unknown: {gigabits} assumed", known is not None


def _devices_and_rate(
    catalog: Catalog, row: Network | None, offer: Offer
) -> tuple[int, float | None]:
    """Devices of one machine, and bytes per second of one of them to other machines."""
    name = offer.instance if row is None else row.node
    node = catalog.nodes.get(name) if name is not None else None
    if node is not None and node.nics and node.nic_bytes_per_second:
        return node.count, node.nics * node.nic_bytes_per_second / node.count
    if row is None:
        return offer.count, None
    gigabits = row.gigabits_per_device
    return row.devices or offer.count, None if gigabits is None else gigabits * 1e9 / 8
