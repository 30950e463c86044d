"""Tables and figures of `views` as plain data: what the page draws is what the HTML report shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from computeflow.views.figures import Figure
from computeflow.views.html_report import Part
from computeflow.views.tables import Table, footnote
from computeflow.web.page_figures import figure_data


def parts_data(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """Cards are left out: they are findings, which have a page."""
    return [
        {"kind": "figure", **figure_data(part), "numbers": table_data(part.numbers)}
        if isinstance(part, Figure)
        else table_data(part)
        for part in parts
        if isinstance(part, Figure | Table)
    ]


def table_data(table: Table) -> dict[str, Any]:
    return {
        "kind": "table",
        "title": table.title,
        "columns": [
            {"header": c.header, "number": c.align == "right", "wide": c.wide}
            for c in table.columns
        ],
        "rows": [list(row) for row in table.rows],
        "strong": sorted(table.strong),
        "note": footnote(table.notes),
    }
