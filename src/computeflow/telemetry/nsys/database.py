"""Safe reading of SQLite exports: `Database` executes nothing in the file and writes nothing.

Changes that are still in a log beside it (`-wal`) are read from a private copy of both.

Only plain tables are read, only columns that are there, and only in pieces. Views, triggers,
virtual tables and functions of a foreign schema are refused (https://www.sqlite.org/security.html).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.files.limits import COPIED_BYTES, TABLES, VALUE_BYTES
from computeflow.files.names import shown
from computeflow.telemetry.opening import GZIP, head_of, open_plain

MAGIC = b"SQLite format 3\x00"
_HEADER = 100
_WAL_HEADER = 32
_JOURNAL = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
"""First bytes of a journal of an unfinished change (https://www.sqlite.org/fileformat2.html)."""
AT_ONCE = 1 << 14
"""Rows fetched at once."""
MAX_TEXT = 512
"""Most characters of a name."""
_FUNCTIONS = frozenset({"coalesce", "substr", "count", "sum", "total", "min", "max", "avg"})
_FAILURES = (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeDecodeError)
Ints = NDArray[np.int64]


class Database:
    """A read-only database, to be used as a context; every failure is an `InputError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._copied: TemporaryDirectory[str] | None = None
        try:
            address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
            if _check(path):
                address = f"{self._copy().as_uri()}?mode=rw"
            self._connection = sqlite3.connect(address, uri=True, isolation_level=None)
        except (OSError, sqlite3.Error, ValueError) as error:
            self._delete_copy()
            raise InputError(
                f"{path}: {getattr(error, 'strerror', None) or _message(error)}"
            ) from None
        try:
            self._guard()
            self.columns: Mapping[str, frozenset[str]] = self._tables()
        except _FAILURES as error:
            self._close()
            raise InputError(f"{path}: not read: {_message(error)}") from None

    def _copy(self) -> Path:
        """Copy the database and its log into a private folder, where SQLite may merge them."""
        parts = [self.path, beside(self.path, "-wal")]
        self._copied = TemporaryDirectory(prefix="computeflow-")
        folder = Path(self._copied.name)
        size = sum(part.stat().st_size for part in parts)
        if size > min(COPIED_BYTES, shutil.disk_usage(folder).free):
            self._delete_copy()
            raise InputError(
                f"{self.path}: it has a log of changes, and the two are too large to copy "
                f"({size >> 20:,} MiB): merge them first (sqlite3 {shown(self.path.name)} "
                "'PRAGMA wal_checkpoint(TRUNCATE)')"
            )
        for part, ending in zip(parts, ("", "-wal"), strict=True):
            shutil.copyfile(part, folder / f"copy.sqlite{ending}")
        return folder / "copy.sqlite"

    def _close(self) -> None:
        self._connection.close()
        self._delete_copy()

    def _delete_copy(self) -> None:
        if self._copied is not None:
            self._copied.cleanup()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

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
            (sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES),
            (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
            (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 1 << 20),
            (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
        ):
            connection.setlimit(limit, most)
        connection.set_authorizer(_authorize)

    def _tables(self) -> dict[str, frozenset[str]]:
        """Plain tables and their columns."""
        columns = {}
        query = "SELECT name, substr(sql, 1, 64) FROM sqlite_master WHERE type = 'table'"
        with closing(self._connection.execute(query)) as cursor:
            named = cursor.fetchmany(TABLES)
        for name, sql in named:
            plain = isinstance(sql, str) and not sql.upper().startswith("CREATE VIRTUAL")
            if plain and isinstance(name, str) and name.replace("_", "").isalnum():
                with closing(self._connection.execute(f'PRAGMA table_info("{name}")')) as cursor:
                    columns[name] = frozenset(str(row[1]) for row in cursor.fetchmany(2000))
        return columns

    def has(self, table: str, *columns: str) -> bool:
        return table in self.columns and set(columns) <= self.columns[table]

    def integers(
        self, table: str, columns: Sequence[str], where: str = "", values: Sequence[int] = ()
    ) -> Iterator[Ints]:
        """Rows of a table, in pieces; -1 for a missing column or value.

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
            raise InputError(f"{self.path}: not read: {_message(error)}") from None

    def strings(self, numbers: Ints) -> dict[int, str]:
        """Texts of `StringIds` by number, read on demand: the table also holds whole files."""
        if not self.has("StringIds", "id", "value"):
            return {}
        query = f"SELECT substr(value, 1, {MAX_TEXT}) FROM StringIds WHERE id = ?"
        texts = {}
        for number in numbers.tolist():
            for (text,) in self.rows(query, (number,)):
                texts[number] = str(text)
        return texts


def beside(path: Path, ending: str) -> Path:
    """A file that belongs to a database, beside the file itself: SQLite follows links, too."""
    path = Path(os.path.realpath(path))  # unlike resolve(), also of links in a circle
    return path.with_name(path.name + ending)


def _check(path: Path) -> bool:
    """Whether a log of changes (`-wal`) belongs to a database. A database with an unfinished change
    is refused: undoing it would let the file name others to delete.
    """
    with open_plain(path) as file:
        head = file.read(_HEADER)
    if head[:2] == GZIP:
        raise InputError(f"{path}: compressed: unpack it first")
    if not head.startswith(MAGIC):
        raise InputError(f"{path}: not an SQLite database")
    if head_of(beside(path, "-journal"), len(_JOURNAL)) == _JOURNAL:
        raise InputError(
            f"{path}: it has an unfinished change ({path.name}-journal): export it again"
        )
    in_log = head[18:20] == b"\x02\x02"
    return in_log and len(head_of(beside(path, "-wal"), _WAL_HEADER + 1)) > _WAL_HEADER


def _message(error: BaseException) -> str:
    """SQLite's message, which quotes the file, on one line and shortened."""
    return " ".join(str(error).split())[:200]


def _authorize(
    action: int, first: str | None, second: str | None, database: str | None, inside: str | None
) -> int:
    """Allow reading plain tables, and nothing that a view or a trigger requests."""
    if inside is not None:
        return sqlite3.SQLITE_DENY
    allowed = action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
    allowed |= action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS
    allowed |= action == sqlite3.SQLITE_PRAGMA and first == "table_info"
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
