"""`catalog`: the catalog's rows, and price lists imported into it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import CatalogFiles, File, NewFile, open_catalog
from computeflow.catalog import Catalog, CatalogRow, Offer, find_model
from computeflow.catalog.loading import user_folder
from computeflow.catalog.lookup import (
    GROUPS,
    SINGULAR,
    by_price,
    find_names,
    find_offers,
    group_rows,
    is_file_name,
    rows_called,
)
from computeflow.catalog.rows import check_date
from computeflow.catalog.serialise import rows_to_data
from computeflow.errors import InputError
from computeflow.files.reading import read_text
from computeflow.files.writing import write_file
from computeflow.views.catalog import offer_table, overview_table, row_tables, rows_table
from computeflow.views.tables import Table

SCHEMA = "computeflow.catalog/1"
_LIMIT = 60
"""Rows that a terminal shows of a long list; JSON has all."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OverviewAnswer(Answer):
    counts: dict[str, int]
    files: tuple[Path, ...]

    def _data(self) -> dict[str, Any]:
        files = [str(path) for path in self.files]
        return {"schema": SCHEMA, "counts": self.counts, "files": files}

    def tables(self) -> list[Table]:
        return [overview_table(self.counts, self.files)]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RowAnswer(Answer):
    """One row, or all prices of one instance."""

    rows: tuple[CatalogRow, ...]
    also: tuple[tuple[str, str], ...]
    """Kind and name of rows of other kinds with this name."""

    def _data(self) -> dict[str, Any]:
        also = [{"kind": kind, "name": name} for kind, name in self.also]
        return _rows_data(self.rows) | {"also": also}

    def tables(self) -> list[Table]:
        others = [(kind, SINGULAR[kind], name) for kind, name in self.also]
        prices = [row for row in self.rows if isinstance(row, Offer)]
        return [offer_table(prices, others)] if prices else row_tables(self.rows[0], others)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RowsAnswer(Answer):
    kinds: tuple[tuple[CatalogRow, ...], ...]
    all: bool

    def _data(self) -> dict[str, Any]:
        return _rows_data([row for rows in self.kinds for row in rows])

    def tables(self) -> list[Table]:
        limit = None if self.all else _LIMIT
        return [rows_table(rows[:limit], len(rows) - len(rows[:limit])) for rows in self.kinds]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OffersAnswer(Answer):
    offers: tuple[Offer, ...]
    named: bool
    """The offers are of one instance, whose prices are compared."""
    all: bool

    def _data(self) -> dict[str, Any]:
        return _rows_data(self.offers)

    def tables(self) -> list[Table]:
        if self.named:
            return [offer_table(self.offers)]
        shown = self.offers if self.all else self.offers[:_LIMIT]
        return [rows_table(shown, len(self.offers) - len(shown))]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ImportAnswer(Answer):
    written: Path
    offers: int
    left_out: dict[str, int]
    notes: tuple[str, ...]

    def _data(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "written": str(self.written),
            "offers": self.offers,
            "left_out": self.left_out,
            "notes": list(self.notes),
        }

    def tables(self) -> list[Table]:
        from computeflow.views.catalog import import_table

        return [import_table(str(self.written), self.offers, self.left_out, self.notes)]


def overview(*, catalog: CatalogFiles = ()) -> OverviewAnswer:
    """Count the rows of every kind."""
    facts = open_catalog(catalog)
    counts = {group: sum(map(len, group_rows(facts, group).values())) for group in GROUPS}
    return OverviewAnswer(counts=counts, files=tuple(facts.files))


def show_row(name: str, *, catalog: CatalogFiles = ()) -> RowAnswer:
    """Find the row called `name`, whatever its kind."""
    return _find_row(open_catalog(catalog), name, None)


def list_rows(
    kind: str, name: str | None = None, *, all: bool = False, catalog: CatalogFiles = ()
) -> RowAnswer | RowsAnswer:
    """List all rows of one kind, or find the one called `name`."""
    facts = open_catalog(catalog)
    if name:
        return _find_row(facts, name, kind)
    return RowsAnswer(kinds=tuple(group_rows(facts, kind).values()), all=all)


def list_offers(
    name: str | None = None,
    *,
    accelerator: str | None = None,
    provider: str | None = None,
    region: str | None = None,
    term: str | None = None,
    all: bool = False,
    catalog: CatalogFiles = (),
) -> OffersAnswer:
    """List prices, cheapest first."""
    found = find_offers(
        open_catalog(catalog),
        name=name,
        accelerator=accelerator,
        provider=provider,
        region=region,
        term=term,
    )
    return OffersAnswer(offers=tuple(found), named=name is not None, all=all)


@checked
def import_prices(
    file: File,
    *,
    provider: str | None = None,
    source: str | None = None,
    as_of: str | None = None,
    to: NewFile | None = None,
    force: bool = False,
    catalog: CatalogFiles = (),
) -> ImportAnswer:
    """Read a price list (a SkyPilot catalog CSV, or the user's own) into the catalog folder."""
    from computeflow.catalog.price_lists import import_prices as read_prices
    from computeflow.catalog.price_lists import write_offers

    facts, path = open_catalog(catalog), Path(file)
    if as_of is not None:
        check_date("--as-of", as_of)
    found = read_prices(
        read_text(path),
        path.name,
        as_of=as_of or _file_date(path),
        source=source or path.name,
        provider=provider,
        accelerators=facts.accelerators,
        providers=facts.providers,
    )
    sellers = {offer.provider for offer in found.offers}
    seller = _plain(sellers.pop()) if len(sellers) == 1 else "various"
    usual = user_folder() / "catalog" / f"offers-{seller}-{_plain(path.stem)}.csv"
    target = usual if to is None else Path(to)
    if target.suffix.lower() != ".csv":
        raise InputError(f"{target}: the file name must end in .csv")
    write_file(target, write_offers(found.offers), "--to", force=force, make_folder=to is None)
    return ImportAnswer(
        written=target, offers=len(found.offers), left_out=found.left_out, notes=found.notes
    )


def _find_row(facts: Catalog, name: str, group: str | None) -> RowAnswer:
    if group in (None, "models") and is_file_name(name):
        return RowAnswer(rows=(find_model(facts, name),), also=())
    (kind, proper), *also = find_names(facts, name, group)
    rows = rows_called(facts, kind, proper)
    prices = by_price(row for row in rows if isinstance(row, Offer))
    return RowAnswer(rows=tuple(prices or rows), also=tuple(also))


def _rows_data(rows: Any) -> dict[str, Any]:
    return {"schema": SCHEMA, "rows": rows_to_data(rows), "not_shown": 0}


def _plain(name: str) -> str:
    """The name with only characters that file names may have."""
    return "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in name)


def _file_date(file: Path) -> str:
    written = datetime.datetime.fromtimestamp(file.stat().st_mtime, tz=datetime.UTC)
    return written.date().isoformat()
