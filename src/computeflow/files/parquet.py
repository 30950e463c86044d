"""`parquet_engine`: DuckDB in memory, which reads and writes Parquet; its one home."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from computeflow.errors import UnavailableError

_SETTINGS: dict[str, Any] = {
    "memory_limit": "2GB",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
"""DuckDB by default fetches extensions that a file asks for."""
_TURN_SECONDS, _TURNS = 0.05, 200
"""So often, and so many times at most, engines in use are interrupted at the exit: one may have begun
its question just after the last time."""


class _Running:
    """Engines in use. Python ends threads that go on at its exit where they stand; where that is in an
    engine, which is C++, the process is aborted: they are interrupted and waited for before.
    """

    def __init__(self) -> None:
        self._users = 0
        self._engines: list[Any] = []
        self._ending = False
        self._changed = threading.Condition()
        atexit.register(self._end)

    @contextmanager
    def use(self) -> Iterator[None]:
        with self._changed:
            if self._ending:
                raise UnavailableError("Parquet is read no more: the process ends")
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    @contextmanager
    def interruptible(self, engine: Any) -> Iterator[None]:
        with self._changed:
            self._engines.append(engine)
        try:
            yield
        finally:
            with self._changed:
                self._engines.remove(engine)

    def _end(self) -> None:
        with self._changed:
            self._ending = True
            for _ in range(_TURNS):
                if not self._users:
                    return
                for engine in self._engines:
                    engine.interrupt()
                self._changed.wait(_TURN_SECONDS)


_RUNNING = _Running()


@contextmanager
def parquet_engine(
    doing: str, database: str = ":memory:", *, spill: Path | None = None, threads: int = 1
) -> Iterator[tuple[Any, type[Exception]]]:
    """A connection, and the class of its errors; `doing` opens the message where DuckDB is absent.

    With a folder to spill into, it takes a quarter of the memory, and the rest is on the disk.
    """
    less: dict[str, Any] = (
        {} if spill is None else {"memory_limit": "512MB", "temp_directory": str(spill)}
    )
    with _RUNNING.use():
        try:
            import duckdb
        except ImportError:
            text = f"{doing} needs duckdb: pip install 'computeflow[store]'"
            raise UnavailableError(text) from None
        config = _SETTINGS | less | {"threads": threads}
        with duckdb.connect(database, config=config) as engine, _RUNNING.interruptible(engine):
            yield engine, duckdb.Error
