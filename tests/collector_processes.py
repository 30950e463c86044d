"""A real `computeflow collect`, and what its store holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from computeflow.collection.store.journal import journal_numbers, journal_path, read_frames
from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.store.store_folder import open_store
from computeflow.collection.wire.batches import unpack_known

ROOT = Path(__file__).parents[1]


class Collector:
    """A process that is stopped by its pid."""

    def __init__(self, store: Path, *options: str, listen: str = "127.0.0.1:0") -> None:
        self.store = store
        words = [sys.executable, "-m", "computeflow", "collect", "--store", str(store)]
        self.process = subprocess.Popen(
            [*words, "--listen", listen, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().strip()
        self.address = self.line.rpartition(" ")[2]

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; exit code and what it said."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=300)
        return self.process.returncode, errors


@contextmanager
def collector(store: Path, *options: str, **more: Any) -> Iterator[Collector]:
    running = Collector(store, *options, **more)
    try:
        yield running
    finally:
        running.stop(signal.SIGKILL if running.process.poll() is None else signal.SIGTERM)


def steps_in(store: Path) -> dict[tuple[str, int, int, int], int]:
    """How often each step (run, rank, attempt, number) is in Parquet and in unsealed journals."""
    import duckdb

    folder = open_store(store)
    state = StateDatabase(folder.state)
    counts: dict[tuple[str, int, int, int], int] = {}
    files = list(folder.parquet.glob("steps/*/*.parquet"))
    if files:
        query = f"SELECT run, rank, attempt, step FROM '{folder.parquet}/steps/*/*.parquet'"
        with duckdb.connect() as engine:
            for key in engine.execute(query).fetchall():
                counts[key] = counts.get(key, 0) + 1
    for number in journal_numbers(folder.journal):
        if state.is_sealed(number):
            continue
        with journal_path(folder.journal, number).open("rb") as file:
            for frame in read_frames(file):
                for key in _steps(unpack_known(frame.body)):
                    counts[key] = counts.get(key, 0) + 1
    state.close()
    return counts


def _steps(batch: Any) -> Iterator[tuple[str, int, int, int]]:
    at = 0
    for rows in batch.ranks:
        for number in batch.steps["number"][at : at + rows.steps]:
            yield batch.run, rows.rank, rows.attempt, int(number)
        at += rows.steps
