"""An export opened so that nothing in it is executed and nothing is written: `Database`.

Only plain tables are read, only columns that are there, and only in pieces. Views, triggers, virtual
tables and functions of a foreign schema are refused (https://www.sqlite.org/security.html).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError

MAGIC = b"SQLite format 3\x00"
AT_ONCE = 1 << 14
"""Rows that are fetched together."""
MOST_TEXT = 512
"""Characters of a name."""
_MOST_TABLES = 10_000
_MOST_VALUE = 1 << 24
"""Bytes of one value: exports keep the output of programs among their strings."""
_FUNCTIONS = frozenset({"coalesce", "substr", "count", "sum", "total", "min", "max", "avg"})
_FAILURES = (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeDecodeError)
Ints = NDArray[np.int64]


class Database:
    """Use as a context; every failure is an `InputError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                magic = file.read(len(MAGIC))
            if magic[:2] == b"\x1f\x8b":
                raise InputError(f"{path}: compressed: SQLite reads it unpacked only")
            if magic != MAGIC:
                raise InputError(f"{path}: no SQLite database")
            address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
            self._connection = sqlite3.connect(address, uri=True, isolation_level=None)
        except (OSError, sqlite3.Error, ValueError) as error:
            raise InputError(
                f"{path}: {getattr(error, 'strerror', None) or _said(error)}"
            ) from None
        try:
            self._guard()
            self.columns: Mapping[str, frozenset[str]] = self._tables()
        except _FAILURES as error:
            self._connection.close()
            raise InputError(f"{path}: not read: {_said(error)}") from None

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def _guard(self) -> None:
        connection = self._connection
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for setting in (
            "trusted_schema=OFF",
            "query_only=ON",
            "cell_size_check=ON",
            "temp_store=MEMORY",
        ):
            connection.execute(f"PRAGMA {setting}").close()
        for limit, most in (
            (sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE),
            (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
            (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 1 << 20),
            (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
        ):
            connection.setlimit(limit, most)
        connection.set_authorizer(_authorize)

    def _tables(self) -> dict[str, frozenset[str]]:
        """Plain tables and their columns."""
        found = {}
        query = "SELECT name, substr(sql, 1, 64) FROM sqlite_master WHERE type = 'table'"
        with closing(self._connection.execute(query)) as cursor:
            named = cursor.fetchmany(_MOST_TABLES)
        for name, sql in named:
            plain = isinstance(sql, str) and not sql.upper().startswith("CREATE VIRTUAL")
            if plain and isinstance(name, str) and name.replace("_", "").isalnum():
                with closing(self._connection.execute(f'PRAGMA table_info("{name}")')) as cursor:
                    found[name] = frozenset(str(row[1]) for row in cursor.fetchmany(2000))
        return found

    def has(self, table: str, *columns: str) -> bool:
        return table in self.columns and set(columns) <= self.columns[table]

    def integers(
        self, table: str, columns: Sequence[str], where: str = "", values: Sequence[int] = ()
    ) -> Iterator[Ints]:
        """Pieces of a table, a row each; -1 for what is missing: a column, or its value.

        `where` is the caller's own text, never the file's.
        """
        there = self.columns.get(table, frozenset())
        terms = [f'coalesce(CAST("{c}" AS INTEGER), -1)' if c in there else "-1" for c in columns]
        query = f'SELECT {", ".join(terms)} FROM "{table}" {where}'
        for rows in self._pieces(query, values):
            yield np.array(rows, np.int64).reshape(len(rows), len(columns))

    def rows(self, query: str, values: Sequence[int] = ()) -> Iterator[tuple[Any, ...]]:
        for rows in self._pieces(query, values):
            yield from rows

    def _pieces(self, query: str, values: Sequence[int]) -> Iterator[list[tuple[Any, ...]]]:
        try:
            with closing(self._connection.execute(query, values)) as cursor:
                while rows := cursor.fetchmany(AT_ONCE):
                    yield rows
        except _FAILURES as error:
            raise InputError(f"{self.path}: not read: {_said(error)}") from None

    def strings(self, numbers: Ints) -> dict[int, str]:
        """Of `StringIds`, as they are asked for: the table also holds whole files."""
        if not self.has("StringIds", "id", "value"):
            return {}
        query = f"SELECT substr(value, 1, {MOST_TEXT}) FROM StringIds WHERE id = ?"
        found = {}
        for number in numbers.tolist():
            for (text,) in self.rows(query, (number,)):
                found[number] = str(text)
        return found


def _said(error: BaseException) -> str:
    """SQLite quotes the file."""
    return " ".join(str(error).split())[:200]


def _authorize(
    action: int, first: str | None, second: str | None, database: str | None, inside: str | None
) -> int:
    """Reading of plain tables; nothing that a view or a trigger asks for."""
    if inside is not None:
        return sqlite3.SQLITE_DENY
    allowed = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
    allowed |= action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS
    allowed |= action == sqlite3.SQLITE_PRAGMA and first == "table_info"
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
