"""A real `computeflow collect` in a process of its own: `CollectorProcess`, and what it costs.

CPU and memory are those of the process and all that it started, from `/proc`.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a process and its children have used so far, and hold."""

    at: float
    cpu_seconds: float
    rss_bytes: int


class CollectorProcess:
    """Use it in a `with`; it is told to stop at the end."""

    def __init__(self, store: Path, *options: str) -> None:
        self.store, self._options = store, options
        self.address = ""

    def __enter__(self) -> CollectorProcess:
        command = [sys.executable, "-m", "computeflow", "collect", "--quiet"]
        self._process = subprocess.Popen(
            [*command, "--store", str(self.store), "--listen", "127.0.0.1:0", *self._options],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if "http" not in line:
            self._process.kill()
            raise RuntimeError(f"collect did not start: {line!r}")
        self.address = line.split()[-1]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2].rstrip("/"))

    def cost(self) -> Cost:
        cpu = rss = 0.0
        for pid in _family(self._process.pid):
            with suppress(OSError, IndexError, ValueError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                cpu += sum(map(int, fields[11:15])) / _TICKS  # with children that have ended
                rss += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
        return Cost(at=time.monotonic(), cpu_seconds=cpu, rss_bytes=round(rss))

    def parts(self) -> dict[str, float]:
        """Resident MB of each of its processes, by what they run."""
        sizes: dict[str, float] = {}
        for pid in _family(self._process.pid):
            with suppress(OSError, IndexError, ValueError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                name = words[2].decode().rpartition(".")[2] if len(words) > 2 else "?"
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                sizes[name] = sizes.get(name, 0.0) + pages * _PAGE / 1e6
        return sizes

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return json.load(answer)


def _family(pid: int) -> list[int]:
    """A process and all below it."""
    family = [pid]
    for parent in family:
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                family += map(int, (task / "children").read_text().split())
    return family


def stored_findings(store: Path) -> list[dict[str, Any]]:
    """All findings of a store, open and closed."""
    with sqlite3.connect(f"file:{store / 'state.sqlite'}?mode=ro", uri=True) as database:
        rows = database.execute("SELECT data FROM findings ORDER BY opened").fetchall()
    return [json.loads(row[0]) for row in rows]


def count_steps(store: Path) -> tuple[int, int, int]:
    """Sealed steps, how many of them are distinct, and the bytes of all Parquet."""
    import duckdb

    pattern = str(store / "parquet" / "*" / "steps" / "**" / "*.parquet")
    files = list(store.glob("parquet/*/*/**/*.parquet"))
    if not any("steps" in path.parts for path in files):
        return 0, 0, 0
    count, distinct = duckdb.execute(
        "SELECT count(*), count(DISTINCT (rank::BIGINT << 32) + step) FROM read_parquet(?)",
        [pattern],
    ).fetchall()[0]
    return int(count), int(distinct), sum(path.stat().st_size for path in files)


def seal_all(store: Path, steps: int, limit_seconds: float = 600.0) -> tuple[int, int, int]:
    """Start a collector again on a store until all of its steps are sealed; what `count_steps` says."""
    until = time.monotonic() + limit_seconds
    with CollectorProcess(store):
        while time.monotonic() < until:
            counted = count_steps(store)
            if counted[0] >= steps:
                break
            time.sleep(2.0)
    return count_steps(store)
