"""Catalog files as plain tables, before a row is checked. Start with `read_tables`.

A file is TOML with any mix of `[[accelerator]]`, `[[model]]`, `[[offer]]`, ... tables, or a CSV of
one kind (its columns tell which). Whatever a user may name by mistake (a folder, a pipe, a
spreadsheet, a bomb) ends in one `InputError` that says what it is.
"""

from __future__ import annotations

import csv
import io
import math
import tomllib
from collections.abc import Callable
from dataclasses import MISSING
from pathlib import Path
from typing import Any, TypeVar

from computeflow import codec
from computeflow.catalog import rows as kinds
from computeflow.catalog.config import short
from computeflow.catalog.models import Model
from computeflow.errors import InputError, UnknownNameError
from computeflow.files.reading import read_text

KINDS: dict[str, type[kinds.Row]] = {
    row.kind: row
    for row in (
        kinds.Accelerator, kinds.Node, kinds.Fabric, kinds.Collective, kinds.Storage, Model,
        kinds.Offer, kinds.Provider, kinds.Tier, kinds.Cooling, kinds.Facility, kinds.Grid,
    )
}  # fmt: skip

PlainRow = tuple[str, dict[str, Any]]
"""Where a row stands ("mine.csv: line 3: offer x"), and what is written there."""

_MAX_WHOLE = 2**63


R = TypeVar("R")


def read_tables(path: Path, where: str = "") -> dict[str, list[PlainRow]]:
    """The rows of a catalog file as plain tables, by kind; `where` is how errors call it."""
    where = where or str(path)
    text = read_text(path)
    return _csv_tables(text, where) if path.suffix.lower() == ".csv" else toml_tables(text, where)


def packaged_rows(path: Path, table: str, kind: type[R]) -> list[R]:
    """The rows of one table of a file that comes with the program."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))[table]
    return [codec.decode(kind, row, f"{path.name}, {row.get('name')}") for row in rows]


def parse_toml(
    text: str, where: str, parse_float: Callable[[str], float] = float
) -> dict[str, Any]:
    """A user's file; `where` opens the message if it is none."""
    try:
        return tomllib.loads(text, parse_float=parse_float)
    except ValueError as error:  # a TOMLDecodeError is one; so is an integer of 10,000 digits
        raise InputError(f"{where}: not TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{where}: not TOML that we read: nested too deeply") from None


def toml_tables(text: str, where: str) -> dict[str, list[PlainRow]]:
    tables = parse_toml(text, where, _finite)
    try:
        _refuse_huge(tables)
    except ValueError as error:
        raise InputError(f"{where}: not TOML: {error}") from None
    for kind, found in tables.items():
        if kind not in KINDS:
            raise UnknownNameError("kind of row", short(kind), KINDS, hint=where)
        if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
            raise InputError(f"{where}: write rows as [[{kind}]]")
    return {
        kind: [
            (f"{where}: {kind} {short(row.get('name', f'row {number}'))}", row)
            for number, row in enumerate(found, start=1)
        ]
        for kind, found in tables.items()
    }


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{short(text)} is not a finite number")
    return number


def _refuse_huge(value: Any) -> None:
    """Whole numbers that no float holds would fail later, in the middle of arithmetic."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            _refuse_huge(part)
    elif isinstance(value, int) and abs(value) > _MAX_WHOLE:
        raise ValueError(f"{short(value)} is too large a number")


def _csv_tables(text: str, where: str) -> dict[str, list[PlainRow]]:
    records = csv_records(text, where)
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


def _numbers(kind: type[kinds.Row]) -> set[str]:
    fields = kind.__dataclass_fields__.values()
    return {f.name for f in fields if "float" in str(f.type) or f.type == "int"}


def _needed(kind: type[kinds.Row]) -> set[str]:
    fields = kind.__dataclass_fields__.values()
    return {f.name for f in fields if f.default is MISSING and f.default_factory is MISSING}


def csv_records(text: str, where: str) -> list[tuple[int, dict[str, str]]]:
    """Records of a CSV with a header, each with its line; at least one, all of the same width."""
    reader = csv.reader(io.StringIO(text), strict=True)
    records = []
    try:
        header = next(reader, None)
        if not header:
            raise InputError(f"{where}: empty")
        _check_header(header, where)
        for values in filter(None, reader):  # a blank line is no record
            if len(values) != len(header):
                raise InputError(
                    f"{where}: line {reader.line_num} has {len(values)} of {len(header)} columns: "
                    "the file is truncated or not a CSV"
                )
            records.append((reader.line_num, dict(zip(header, values, strict=True))))
    except csv.Error as error:
        raise InputError(f"{where}: line {reader.line_num}: {error}") from None
    if not records:
        raise InputError(f"{where}: a header and no rows")
    return records


def _check_header(header: list[str], where: str) -> None:
    for mark, name in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and mark in header[0]:
            raise InputError(
                f"{where}: its columns are separated by {name}: save it with commas, and with a "
                "point before decimals"
            )
    twice = [name for name in dict.fromkeys(header) if header.count(name) > 1]
    if twice:
        raise InputError(f"{where}: two columns are called {short(twice[0])!r}")


def _typed(record: dict[str, str], numbers: set[str], where: str) -> dict[str, Any]:
    """Empty cells are absent, number columns become numbers, `a;b` in aliases becomes a list."""
    table: dict[str, Any] = {}
    for name, text in record.items():
        if not text:
            continue
        if name in numbers:
            try:
                table[name] = int(text) if text.isdecimal() else _finite(text)
                _refuse_huge(table[name])
            except ValueError:
                raise InputError(f"{where}: {name} {short(text)!r} is not a number") from None
        else:
            table[name] = text.split(";") if name == "aliases" else text
    return table
