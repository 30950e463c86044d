"""A table as a value, and its renderings: plain text, rich, HTML.

Whoever builds a table decides what it shows; how it looks is decided here. Units are in the headers.
Rows that are not shown are counted, never dropped in silence.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from computeflow.files.names import printable

if TYPE_CHECKING:
    from rich.table import Table as RichTable
    from rich.text import Text

WIDTH = 80
_GAP = "  "
_NARROWEST = 8
_UNIT = re.compile(r"(?<=\d) (?=%|(?:s|ms|d|GB|MB|TB|days|GPUs)\b)")
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    header: str
    align: Literal["left", "right"] = "left"
    wrap: bool = False
    """Wrapped when the table is too wide."""
    wide: bool = False
    """Left out on the page where the screen is a phone's."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "header", _cell(self.header))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    strong: frozenset[int] = frozenset()
    """Emphasised rows (totals)."""

    def __post_init__(self) -> None:
        """Escapes control characters and joins lines: names come from files."""
        object.__setattr__(self, "title", _cell(self.title))
        object.__setattr__(self, "rows", tuple(tuple(map(_cell, row)) for row in self.rows))
        object.__setattr__(self, "notes", tuple(map(_cell, self.notes)))


_LINES = {9: " ", 10: " ", 13: " "}


def _cell(text: str) -> str:
    return text if text.isprintable() else printable(text.translate(_LINES))


def columns(*headers: str, right: str = "", wrap: str = "", wide: str = "") -> tuple[Column, ...]:
    """Columns by header; `right`, `wrap` and `wide`: comma-separated headers that align right, wrap,
    or need a wide screen.
    """
    rights, wraps, wides = right.split(","), wrap.split(","), wide.split(",")
    return tuple(
        Column(header=h, align="right" if h in rights else "left", wrap=h in wraps, wide=h in wides)
        for h in headers
    )


def to_text(table: Table, width: int = WIDTH) -> str:
    """At most `width` columns; a table that cannot be that narrow is written field by field."""
    widths = _widths(table, width)
    lines = textwrap.wrap(table.title, width)
    if widths is None:
        lines += _stacked(table, width)
    else:
        lines += _row_lines(table, tuple(c.header for c in table.columns), widths)
        lines.append(_GAP.join("-" * w for w in widths))
        for row in table.rows:
            lines += _row_lines(table, row, widths)
    lines += _wrapped(footnote(table.notes), width, indent="  ")
    return "\n".join(line.rstrip() for line in lines)


def _widths(table: Table, width: int) -> list[int] | None:
    """The width of each column, wrapping ones narrowed until all fit; None where they cannot."""
    cells = [tuple(c.header for c in table.columns), *table.rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    while over > 0:
        flexible = [i for i, c in enumerate(table.columns) if c.wrap and widths[i] > _NARROWEST]
        if not flexible:
            return None
        widths[max(flexible, key=lambda i: widths[i])] -= 1
        over -= 1
    return widths


def _stacked(table: Table, width: int) -> list[str]:
    label = max(len(column.header) for column in table.columns)
    lines: list[str] = []
    for row in table.rows:
        for column, cell in zip(table.columns, row, strict=True):
            head, *rest = _wrapped(cell, width - label - len(_GAP)) or [""]
            lines.append(f"{column.header.ljust(label)}{_GAP}{head}")
            lines += [" " * (label + len(_GAP)) + line for line in rest]
        lines.append("")
    return lines[:-1]


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    width = max(width, _NARROWEST)
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)


def _row_lines(table: Table, row: tuple[str, ...], widths: list[int]) -> list[str]:
    wrapped = [
        _wrapped(cell, w) if len(cell) > w else [cell] for cell, w in zip(row, widths, strict=True)
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


def to_rich(table: Table, width: int = WIDTH) -> RichTable | Text:
    """The table for a terminal, with a bold header; plain text where the terminal is too narrow."""
    from rich.table import Table as RichTable
    from rich.text import Text

    widths = _widths(table, width)
    if widths is None:
        return Text(to_text(table, width))
    rich = RichTable(
        title=Text(table.title) if table.title else None,
        box=None,
        title_justify="left",
        title_style="bold",
        header_style="bold underline",
        padding=(0, len(_GAP), 0, 0),
        pad_edge=False,
        caption=Text(footnote(table.notes)) if table.notes else None,
        caption_justify="left",
    )
    for column, size in zip(table.columns, widths, strict=True):
        rich.add_column(Text(column.header), justify=column.align, width=size)
    for number, row in enumerate(table.rows):
        wrapped = ("\n".join(_wrapped(c, w)) for c, w in zip(row, widths, strict=True))
        rich.add_row(*map(Text, wrapped), style="bold" if number in table.strong else "")
    return rich


def footnote(notes: Iterable[str]) -> str:
    """The notes under a table as one paragraph of sentences."""
    return " ".join(_sentence(note) for note in notes)


def _sentence(note: str) -> str:
    """With a capital, unless it begins with a name that has none (a path, `compute.clock`)."""
    word = note.partition(" ")[0]
    text = note[:1].upper() + note[1:] if word.isalpha() else note
    return text if text.endswith((".", "!", "?")) else f"{text}."


def left_out_notes(texts: Sequence[str]) -> list[str]:
    """One note on all input that was skipped."""
    return [f"left out: {'; '.join(texts)}"] if texts else []


def lead_text(headline: str, width: int = WIDTH) -> str:
    """The lines before the first table; a number keeps its unit."""
    lines = _wrapped(_UNIT.sub("\u00a0", _cell(headline)), width)
    return "\n".join(lines).replace("\u00a0", " ")


def lead_html(headline: str) -> str:
    return f'<p class="lead">{text_html(_cell(headline))}</p>' if headline else ""


def text_html(text: str) -> str:
    """What stands between backticks is code, as the page shows it."""
    from html import escape

    return _CODE.sub(r"<code>\1</code>", escape(text))


def to_html(table: Table) -> str:
    from html import escape

    head = "".join(
        f'<th style="text-align:{c.align}">{escape(c.header)}</th>' for c in table.columns
    )
    body = "".join(
        f"<tr{' class=strong' if number in table.strong else ''}>"
        + "".join(
            f'<td style="text-align:{column.align}">{text_html(cell)}</td>'
            for cell, column in zip(row, table.columns, strict=True)
        )
        + "</tr>"
        for number, row in enumerate(table.rows)
    )
    notes = f"<p>{text_html(footnote(table.notes))}</p>" if table.notes else ""
    return (
        f"<table><caption>{escape(table.title)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>{notes}"
    )
