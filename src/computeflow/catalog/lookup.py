"""Rows for what a user typed: a name of any kind, a file that describes a model, offers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

from computeflow.catalog.config import short
from computeflow.catalog.files import KINDS
from computeflow.catalog.loading import Catalog, CatalogTable
from computeflow.catalog.models import Model
from computeflow.catalog.rows import CatalogRow, Offer, Provider, normalise
from computeflow.errors import InputError, UnknownNameError, nearest

GROUPS: dict[str, tuple[str, ...]] = {
    "accelerators": ("accelerator",),
    "models": ("model",),
    "nodes": ("node",),
    "fabrics": ("fabric",),
    "storage": ("storage",),
    "sites": ("tier", "cooling", "facility", "grid"),
    "providers": ("provider",),
    "offers": ("offer",),
    "collectives": ("collective",),
}
"""Kinds that `computeflow catalog` lists under one word."""
SINGULAR = {kind: group for group, kinds in GROUPS.items() for kind in kinds} | {"site": "sites"}


def group_rows(catalog: Catalog, group: str) -> dict[str, tuple[CatalogRow, ...]]:
    """All rows of a group, by kind."""
    if group not in GROUPS:
        raise UnknownNameError("kind of row", short(group), GROUPS)
    return {kind: tuple(catalog.rows(KINDS[kind])) for kind in GROUPS[group]}


def find_names(catalog: Catalog, name: str, group: str | None = None) -> list[tuple[str, str]]:
    """Kind and name of every row that `name` may mean; rows of that very name before aliases."""
    wanted = normalise(name)
    spelled = [
        (kind, proper, aliases)
        for kind in (GROUPS[group] if group else chain(*GROUPS.values()))
        for proper, aliases in catalog.names(kind)
    ]
    exact, by_alias = [], []
    for kind, proper, aliases in spelled:
        if normalise(proper) == wanted:
            exact.append((kind, proper))
        elif wanted in map(normalise, aliases):
            by_alias.append((kind, proper))
    if not exact and not by_alias:
        known = {s: proper for _, proper, aliases in spelled for s in (*aliases, proper)}
        what = group.removesuffix("s") if group else "name"
        raise UnknownNameError(what, short(name), known, means=known)
    return exact + by_alias


def find_rows(catalog: Catalog, name: str, group: str | None = None) -> list[CatalogRow]:
    """The row called `name`, looked for in one group or in all; an offer may have many prices."""
    if group in (None, "models") and is_file_name(name):
        return [find_model(catalog, name)]
    return rows_called(catalog, *find_names(catalog, name, group)[0])


def rows_called(catalog: Catalog, kind: str, name: str) -> list[CatalogRow]:
    """The one row of that name; of offers, every price."""
    rows, wanted = catalog.rows(KINDS[kind]), normalise(name)
    if kind != Offer.kind:
        return [rows[name]]
    return [row for row in rows if normalise(row.name) == wanted]


def find_model(catalog: Catalog, text: str) -> Model:
    """A model by catalog name, by Hugging Face `config.json`, or by TOML file with one [[model]]."""
    if not is_file_name(text):
        return catalog.models[text]
    path = Path(text)
    if path.suffix.lower() == ".json":
        from computeflow.catalog.huggingface import read_config

        return read_config(path)
    with_file = Catalog([*catalog.files, path])
    with_file.check_file(path)
    models = with_file.tables[path].get("model", [])
    if len(models) != 1:
        raise InputError(f"{text}: holds {len(models)} models; one is needed here")
    return with_file.models[models[0][1]["name"]]


COMMON_SIZES = {
    "7b": "llama-2-7b",
    "8b": "llama-3.1-8b",
    "13b": "llama-2-13b",
    "70b": "llama-3.1-70b",
    "405b": "llama-3.1-405b",
}
"""Models that a bare size typed by a user is taken for: the newest Llama of that size."""


def find_typed_model(catalog: Catalog, text: str) -> Model:
    """The model a user asks for; unlike a file's model, it may be a bare size ("70b")."""
    return find_model(catalog, COMMON_SIZES.get(normalise(text), text))


def is_file_name(text: str) -> bool:
    return Path(text).suffix.lower() in (".json", ".toml")


def provider_name(providers: CatalogTable[Provider], text: str) -> str:
    """A provider as the catalog calls it ("Amazon" is aws); one it does not know, in small."""
    row = providers.get(text)
    return row.name if row else normalise(text)


def find_offers(
    catalog: Catalog,
    *,
    name: str | None = None,
    accelerator: str | None = None,
    provider: str | None = None,
    region: str | None = None,
    term: str | None = None,
) -> list[Offer]:
    """Offers that fit, cheapest device first. What leaves none is an error with what there is."""
    offers = list(catalog.offers)
    if name:
        wanted = normalise(find_names(catalog, name, "offers")[0][1])
        offers = [offer for offer in offers if normalise(offer.name) == wanted]
    if accelerator:
        device = catalog.accelerators[accelerator]
        meant = {normalise(spelling) for spelling in (device.name, *device.aliases)}
        offers = _narrowed(
            offers,
            "accelerator",
            device.name,
            lambda o: o.accelerator,
            lambda value: normalise(value) in meant,
        )
    if provider:
        seller = _seller(catalog, provider)
        offers = _narrowed(offers, "provider", seller, lambda o: o.provider, lambda v: v == seller)
    if region:
        part = region.casefold()
        offers = _narrowed(
            offers, "region", region, lambda o: o.region, lambda v: part in v.casefold()
        )
    if term:
        offers = _narrowed(offers, "term", term, lambda o: o.term, lambda v: v == term)
    return by_price(offers)


def by_price(offers: Iterable[Offer]) -> list[Offer]:
    return sorted(offers, key=lambda o: (o.usd_per_device_hour, o.name, o.region))


def _seller(catalog: Catalog, text: str) -> str:
    sellers = {offer.provider for offer in catalog.offers}
    name = provider_name(catalog.providers, text)
    if name not in sellers and text not in catalog.providers:
        known = {seller: seller for seller in sellers} | catalog.providers.spellings
        raise UnknownNameError("provider", short(text), known, means=known)
    return name


def _narrowed(
    offers: list[Offer],
    what: str,
    wanted: str,
    value: Callable[[Offer], str],
    fits: Callable[[str], bool],
) -> list[Offer]:
    left = [offer for offer in offers if fits(value(offer))]
    if left:
        return left
    there = sorted({value(offer) for offer in offers})
    near = nearest(wanted, there)
    listed = f"; nearest: {', '.join(near)}" if near else ""
    if len(there) <= 6:
        listed = f"; there is {', '.join(there)}"
    raise InputError(f"no such offer with {what} '{short(wanted)}'{listed}")
