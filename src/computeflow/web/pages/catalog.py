"""`/catalog`: facts with their sources: kinds, the rows of a kind, one row."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Annotated, Any

from fastapi import Path, Query

from computeflow.answers.catalogs import RowAnswer, RowsAnswer, list_rows, overview
from computeflow.catalog.lookup import GROUPS, SINGULAR, group_rows, is_file_name
from computeflow.catalog.rows import CatalogRow, normalise
from computeflow.errors import UnknownNameError
from computeflow.views.catalog import rows_table
from computeflow.views.tables import Table
from computeflow.web.page_answers import Content, page_content
from computeflow.web.part_data import parts_data, table_data
from computeflow.web.workers.tasks.packaged_catalog import shared_catalog

_TITLE = "Catalog"
_MAX_FOUND = 100
_HOLDS = {
    "accelerators": "peaks by precision, memory, links and power of a GPU, TPU or other device",
    "models": "layers, widths, experts and context of published models",
    "nodes": "machines: devices, host, network cards and power of each",
    "fabrics": "networks and links between devices: bandwidth and latency",
    "storage": "disks, object stores and file systems: rates and limits",
    "sites": "tiers, cooling, facilities, and the price and carbon of power by grid",
    "providers": "who rents out machines: terms, regions, orchestration",
    "offers": "prices of machines by provider, region and term, each with its date",
    "collectives": "measured times of collective operations by size",
}
"""What each kind holds, in one line."""
Kind = Annotated[str, Path(max_length=40)]
Name = Annotated[str, Path(max_length=200)]


def catalog_page(
    search: Annotated[str, Query(max_length=80, description="Part of a name or alias.")] = "",
) -> Content:
    """How many rows there are of every kind, how new they are, and rows by part of a name."""
    answer = overview(catalog=shared_catalog())
    kinds = [
        {"kind": group, "rows": answer.counts[group], "newest": newest, "holds": _HOLDS[group]}
        for group, newest in _newest().items()
    ]
    return page_content(_TITLE, answer, kinds=kinds, search=search, found=_found(search))


@cache
def _newest() -> dict[str, str]:
    """The date of the newest row of each group."""
    facts = shared_catalog()
    return {
        group: max(row.as_of for rows in group_rows(facts, group).values() for row in rows)
        for group in GROUPS
    }


def _found(search: str) -> dict[str, Any] | None:
    """Rows whose name or alias has these letters, whatever their case and hyphens."""
    wanted = normalise(search)
    if not wanted:
        return None
    spelled = [
        (SINGULAR[kind], name, next((s for s in (name, *aliases) if wanted in normalise(s)), None))
        for kinds in GROUPS.values()
        for kind in kinds
        for name, aliases in shared_catalog().names(kind)
    ]
    rows = [
        {"kind": group, "name": name, "as": "" if match == name else match}
        for group, name, match in spelled
        if match is not None
    ]
    return {"rows": rows[:_MAX_FOUND], "total": len(rows)}


def kind_page(kind: Kind) -> Content:
    """All rows of one kind."""
    facts = shared_catalog()
    answer = list_rows(_group(kind), all=True, catalog=facts)
    assert isinstance(answer, RowsAnswer)
    lists = [
        {
            "table": table_data(_rows_table(rows)),
            "names": [row.name for row in rows],
        }
        for rows in answer.kinds
    ]
    return page_content(kind.capitalize(), answer, group=kind, lists=lists)


def _rows_table(rows: tuple[CatalogRow, ...]) -> Table:
    """Without the note on the command that shows a row: here it is a click."""
    table = rows_table(rows)
    return replace(table, notes=tuple(note for note in table.notes if "catalog NAME" not in note))


def row_page(kind: Kind, name: Name) -> Content:
    """One row with all of its fields, its source and its date."""
    if not name.strip() or is_file_name(name):
        raise UnknownNameError("name", name, ())
    answer = list_rows(_group(kind), name, catalog=shared_catalog())
    assert isinstance(answer, RowAnswer)
    row = answer.rows[0]
    return page_content(
        row.name,
        answer,
        group=kind,
        source=row.source,
        as_of=row.as_of,
        note=row.note,
        parts=parts_data(answer.tables()),
        also=[{"group": SINGULAR[of], "name": also} for of, also in answer.also],
    )


def _group(kind: str) -> str:
    if kind not in GROUPS:
        raise UnknownNameError("kind of row", kind, GROUPS)
    return kind
