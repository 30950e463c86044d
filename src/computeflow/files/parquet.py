"""`parquet_engine`: DuckDB in memory, which reads and writes Parquet; its one home."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

from computeflow.errors import UnavailableError

_SETTINGS: dict[str, Any] = {
    "memory_limit": "2GB",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
"""DuckDB by default fetches extensions that a file asks for."""


def load_engine_early() -> None:
    """Import DuckDB beside other work: the first question need not wait for it."""
    Thread(target=_load_engine, daemon=True).start()


def _load_engine() -> None:
    with suppress(ImportError):
        import duckdb  # noqa: F401


@contextmanager
def parquet_engine(
    doing: str, database: str = ":memory:", *, spill: Path | None = None, threads: int = 1
) -> Iterator[tuple[Any, type[Exception]]]:
    """A connection, and the class of its errors; `doing` opens the message where DuckDB is absent.

    With a folder to spill into, it takes a quarter of the memory, and the rest is on the disk.
    """
    try:
        import duckdb
    except ImportError:
        raise UnavailableError(f"{doing} needs duckdb: pip install 'computeflow[store]'") from None
    less: dict[str, Any] = (
        {} if spill is None else {"memory_limit": "512MB", "temp_directory": str(spill)}
    )
    with duckdb.connect(database, config=_SETTINGS | less | {"threads": threads}) as engine:
        yield engine, duckdb.Error
