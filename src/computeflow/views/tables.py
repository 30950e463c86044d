"""A table as a value, and its renderings: plain text, rich, HTML.

What a table shows is decided once, by whoever builds it; how it looks, here. Units stand in the
headers. Rows that are not shown are counted, never dropped in silence.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table as RichTable

WIDTH = 80
_GAP = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    header: str
    align: Literal["left", "right"] = "left"
    wrap: bool = False
    """Gives way when the table is too wide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    strong: frozenset[int] = frozenset()
    """Rows that stand out (totals)."""


def columns(*headers: str, right: str = "", wrap: str = "") -> tuple[Column, ...]:
    """Columns by header; `right` and `wrap` list, comma-separated, which align right or wrap."""
    rights, wraps = right.split(","), wrap.split(",")
    return tuple(
        Column(header=h, align="right" if h in rights else "left", wrap=h in wraps) for h in headers
    )


def to_text(table: Table, width: int = WIDTH) -> str:
    widths = _widths(table, width)
    lines = [*textwrap.wrap(table.title, width)] if table.title else []
    lines += _row_lines(table, tuple(c.header for c in table.columns), widths)
    lines.append(_GAP.join("-" * w for w in widths))
    for row in table.rows:
        lines += _row_lines(table, row, widths)
    for note in table.notes:
        lines += textwrap.wrap(note, width, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(line.rstrip() for line in lines)


def _widths(table: Table, width: int) -> list[int]:
    cells = [tuple(c.header for c in table.columns), *table.rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    flexible = [i for i, column in enumerate(table.columns) if column.wrap]
    while over > 0 and flexible:
        widest = max(flexible, key=lambda i: widths[i])
        if widths[widest] <= 12:
            break
        widths[widest] -= 1
        over -= 1
    return widths


def _row_lines(table: Table, row: tuple[str, ...], widths: list[int]) -> list[str]:
    wrapped = [
        textwrap.wrap(cell, w, break_on_hyphens=False) if len(cell) > w else [cell]
        for cell, w in zip(row, widths, strict=True)
    ]
    height = max(len(cell) for cell in wrapped)
    lines = []
    for i in range(height):
        parts = [cell[i] if i < len(cell) else "" for cell in wrapped]
        lines.append(
            _GAP.join(
                part.rjust(w) if column.align == "right" else part.ljust(w)
                for part, w, column in zip(parts, widths, table.columns, strict=True)
            )
        )
    return lines


def to_rich(table: Table) -> RichTable:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape as plain
    from rich.table import Table as RichTable

    rich = RichTable(
        title=plain(table.title) or None,
        box=SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        caption=plain("\n".join(table.notes)) or None,
        caption_justify="left",
    )
    for column in table.columns:
        rich.add_column(
            plain(column.header),
            justify=column.align,
            no_wrap=not column.wrap,
            overflow="fold",
        )
    for number, row in enumerate(table.rows):
        rich.add_row(*map(plain, row), style="bold" if number in table.strong else "")
    return rich


def to_html(table: Table) -> str:
    head = "".join(f'<th class="{c.align}">{escape(c.header)}</th>' for c in table.columns)
    body = "".join(
        f"<tr{' class=strong' if number in table.strong else ''}>"
        + "".join(
            f'<td class="{column.align}">{escape(cell)}</td>'
            for cell, column in zip(row, table.columns, strict=True)
        )
        + "</tr>"
        for number, row in enumerate(table.rows)
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.notes)
    return (
        f"<table><caption>{escape(table.title)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>{notes}"
    )
