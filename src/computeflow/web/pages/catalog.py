"""`/catalog`: facts with their sources: kinds, the rows of a kind, one row."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

from computeflow.answers.catalogs import RowAnswer, RowsAnswer, list_rows, overview
from computeflow.catalog.lookup import GROUPS, SINGULAR, is_file_name
from computeflow.errors import UnknownNameError
from computeflow.views.catalog import rows_table
from computeflow.web.page_answers import Content, page_content
from computeflow.web.part_data import parts_data, table_data
from computeflow.web.tasks.packaged_catalog import shared_catalog

_MAX_ROWS = 1_000
"""Rows of one table on the page; JSON has all of them in `result`."""
_TITLE = "Catalog"
Kind = Annotated[str, Path(max_length=40)]
Name = Annotated[str, Path(max_length=200)]


def catalog_page() -> Content:
    """How many rows there are of every kind."""
    answer = overview(catalog=shared_catalog())
    return page_content(_TITLE, answer, kinds=list(GROUPS))


def kind_page(kind: Kind) -> Content:
    """All rows of one kind."""
    facts = shared_catalog()
    answer = list_rows(_group(kind), all=True, catalog=facts)
    assert isinstance(answer, RowsAnswer)
    lists = [
        {
            "table": table_data(rows_table(rows[:_MAX_ROWS], max(len(rows) - _MAX_ROWS, 0))),
            "names": [row.name for row in rows[:_MAX_ROWS]],
        }
        for rows in answer.kinds
    ]
    return page_content(kind.capitalize(), answer, group=kind, lists=lists)


def row_page(kind: Kind, name: Name) -> Content:
    """One row with all of its fields, its source and its date."""
    if is_file_name(name):
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
