"""`parquet_engine`: DuckDB in memory, which reads and writes Parquet; its one home."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from computeflow.errors import UnavailableError

_SETTINGS: dict[str, Any] = {
    "threads": 1,
    "memory_limit": "2GB",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
"""DuckDB by default fetches extensions that a file asks for."""


@contextmanager
def parquet_engine(doing: str, database: str = ":memory:") -> Iterator[tuple[Any, type[Exception]]]:
    """A connection, and the class of its errors; `doing` opens the message where DuckDB is absent."""
    try:
        import duckdb
    except ImportError:
        raise UnavailableError(f"{doing} needs duckdb: pip install 'computeflow[store]'") from None
    with duckdb.connect(database, config=_SETTINGS) as engine:
        yield engine, duckdb.Error
