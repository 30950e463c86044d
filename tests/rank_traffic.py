"""Bytes between the ranks of a job that runs on a real Slurm, as the kernel counts them: `RankTraffic`.

Measured: bytes that each TCP socket between two ranks had acknowledged (`ss`), before and after some
steps; which rank is on which node and leaf is what Slurm tells the ranks. Nodes of the lab share one
machine, so that no switch is passed: a byte crosses leaves where its two ends say they are on two.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from recorded_runs import ROOT
from slurm_control import wait_for

SCRIPT = ROOT / "tests" / "record_scripts" / "across_leaves.py"
_SOCKET = re.compile(
    r"^ESTAB\s+\S+\s+\S+\s+(?P<here>\S+)\s+(?P<there>\S+)\s.*?pid=(?P<pid>\d+).*?"
    r"bytes_acked:(?P<bytes>\d+)"
)

_READINGS = 5


@dataclass(frozen=True)
class Rank:
    pid: int
    node: str
    leaf: str


@dataclass(frozen=True)
class RankTraffic:
    folder: Path
    ranks: int
    steps: int

    def write_script(self) -> Path:
        path = self.folder / "across.sh"
        train = f"{sys.executable} {SCRIPT} {self.folder} {self.steps}"
        path.write_text(f"#!/bin/sh\nexport OMP_NUM_THREADS=1\nsrun --mpi=none {train}\n")
        return path

    def where(self, job: str) -> dict[int, Rank]:
        """What the ranks of a running job say of themselves."""
        self._all(job, "warm")
        rows = [
            line.split() for line in (self.folder / f"ranks-{job}.txt").read_text().splitlines()
        ]
        return {
            int(rank): Rank(pid=int(pid), node=node, leaf=address.split(".")[-2])
            for rank, pid, node, address in rows
        }

    def step_bytes(self, job: str) -> dict[tuple[int, int], float]:
        """Bytes of a step from rank to rank; the job goes on meanwhile, and ends."""
        ranks = {each.pid: rank for rank, each in self.where(job).items()}
        before = _sent(ranks)
        (self.folder / f"warm-{job}").touch()
        self._all(job, "done")
        after = _sent(ranks)
        (self.folder / f"done-{job}").touch()
        return {pair: (after[pair] - before.get(pair, 0)) / self.steps for pair in after}

    def _all(self, job: str, name: str) -> None:
        paths = [self.folder / f"{name}-{job}-{rank}" for rank in range(self.ranks)]
        wait_for(lambda: all(path.exists() for path in paths), f"ranks of job {job}: {name}")


def _sent(ranks: dict[int, int]) -> dict[tuple[int, int], int]:
    """Bytes from rank to rank so far. A list of sockets may lack one while others come and go."""
    readings = [_read(ranks) for _ in range(_READINGS)]
    pairs = {pair for reading in readings for pair in reading}
    return {pair: max(reading.get(pair, 0) for reading in readings) for pair in pairs}


def _read(ranks: dict[int, int]) -> dict[tuple[int, int], int]:
    text = subprocess.run(
        ["ss", "-tniHOp"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    sockets = [match for line in text.splitlines() if (match := _SOCKET.search(line))]
    owner = {each["here"]: int(each["pid"]) for each in sockets}
    found: dict[tuple[int, int], int] = {}
    for each in sockets:
        here, there = ranks.get(int(each["pid"])), ranks.get(owner.get(each["there"], 0))
        if here is not None and there is not None:
            found[here, there] = found.get((here, there), 0) + int(each["bytes"])
    return found
