"""Catalog files as plain tables, before a row is checked. Start with `read_tables`.

A file is TOML with any mix of `[[accelerator]]`, `[[model]]`, `[[offer]]`, ... tables, or a CSV of
one kind (its columns tell which). Whatever a user may name by mistake (a folder, a pipe, a
spreadsheet, a bomb) ends in one `InputError` that says what it is.
"""

from __future__ import annotations

from dataclasses import MISSING
from pathlib import Path
from typing import Any, TypeVar

from computeflow import codec
from computeflow.catalog import rows as kinds
from computeflow.catalog.config import short
from computeflow.catalog.models import Model
from computeflow.errors import InputError, UnknownNameError
from computeflow.files.limits import WHOLE
from computeflow.files.parsing import parse_csv, parse_number, parse_toml
from computeflow.files.reading import read_text

KINDS: dict[str, type[kinds.CatalogRow]] = {
    row.kind: row
    for row in (
        kinds.Accelerator,
        kinds.NodeType,
        kinds.Fabric,
        kinds.PublishedCollective,
        kinds.Storage,
        Model,
        kinds.Offer,
        kinds.Provider,
        kinds.UptimeTier,
        kinds.Cooling,
        kinds.Facility,
        kinds.Grid,
    )
}

PlainRow = tuple[str, dict[str, Any]]
"""Where a row stands ("mine.csv: line 3: offer x"), and what is written there."""

R = TypeVar("R")


def read_tables(path: Path, where: str = "") -> dict[str, list[PlainRow]]:
    """The rows of a catalog file as plain tables, by kind; `where` is how errors call it."""
    where = where or str(path)
    text = read_text(path)
    return _csv_tables(text, where) if path.suffix.lower() == ".csv" else toml_tables(text, where)


def packaged_rows(path: Path, table: str, kind: type[R]) -> list[R]:
    """The rows of one table of a file that comes with the program."""
    rows = parse_toml(read_text(path), path.name)[table]
    return [codec.decode(kind, row, f"{path.name}, {row.get('name')}") for row in rows]


def toml_tables(text: str, where: str) -> dict[str, list[PlainRow]]:
    tables = parse_toml(text, where)
    for kind, rows in tables.items():
        if kind not in KINDS:
            raise UnknownNameError("kind of row", short(kind), KINDS, hint=where)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise InputError(f"{where}: write rows as [[{kind}]]")
    return {
        kind: [
            (f"{where}: {kind} {short(row.get('name', f'row {number}'))}", row)
            for number, row in enumerate(rows, start=1)
        ]
        for kind, rows in tables.items()
    }


def _csv_tables(text: str, where: str) -> dict[str, list[PlainRow]]:
    records = parse_csv(text, where)
    columns = set(records[0][1])
    fitting = [
        row
        for row in KINDS.values()
        if {"name", "source", "as_of"} <= columns <= set(row.__dataclass_fields__)
    ]
    if not fitting:
        offer = ", ".join(name for name in kinds.Offer.__dataclass_fields__ if name != "aliases")
        raise InputError(
            f"{where}: its columns fit no kind of row (an offer: {offer}); price lists are read by "
            "`computeflow catalog import`"
        )
    kind = min(fitting, key=lambda row: len(_needed(row) - columns))
    numbers = _numbers(kind)
    return {
        kind.kind: [
            (
                f"{where}: line {line}: {kind.kind} {short(record['name'])}",
                _typed(record, numbers, f"{where}: line {line}"),
            )
            for line, record in records
        ]
    }


def _numbers(kind: type[kinds.CatalogRow]) -> set[str]:
    fields = kind.__dataclass_fields__.values()
    return {f.name for f in fields if "float" in str(f.type) or f.type == "int"}


def _needed(kind: type[kinds.CatalogRow]) -> set[str]:
    fields = kind.__dataclass_fields__.values()
    return {f.name for f in fields if f.default is MISSING and f.default_factory is MISSING}


def _typed(record: dict[str, str], numbers: set[str], where: str) -> dict[str, Any]:
    """Empty cells are absent, number columns become numbers, `a;b` in aliases becomes a list."""
    table: dict[str, Any] = {}
    for name, text in record.items():
        if not text:
            continue
        if name in numbers:
            number = parse_number(text, f"{where}: {name}")
            table[name] = int(text) if text.isdecimal() and number < WHOLE else number
        else:
            table[name] = text.split(";") if name == "aliases" else text
    return table
