"""Run folders with known truth: ranks that train together under DDP, with faults where wanted."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from computeflow.recorder.frames import MAGIC, Record, packed_all

EPOCH_NS = 1_790_000_000_000_000_000
MS = 1000
"""Microseconds."""
Extra = Callable[[int, int], Mapping[str, int]]
"""Microseconds that a rank takes longer in a step, by letter; "gap" is after the optimizer."""


def nothing(rank: int, step: int) -> Mapping[str, int]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Training:
    """Ranks that train together: batch, forward, backward with an all-reduce of buckets, optimizer."""

    ranks: int = 2
    steps: int = 60
    data: int = 1 * MS
    forward: int = 30 * MS
    backward: int = 60 * MS
    optimizer: int = 9 * MS
    gap: int = 300
    transfer: int = 1 * MS
    buckets: int = 3
    startup: int = 2_000 * MS
    jitter: float = 0.0
    """Share by which forward and backward vary from step to step."""
    seed: int = 0
    extra: Extra = nothing
    tokens: Callable[[int, int], int] = lambda rank, step: 4096
    """Tokens of a rank in a step."""
    attempt: int = 0
    first_count: int = 1
    """The optimizer's own count of the first step."""
    begins: int = 0
    """Microseconds after the epoch at which the processes begin."""
    clock_ahead: Mapping[int, int] = field(default_factory=dict)
    """Microseconds that a rank's clock is ahead; such a rank is on another host."""
    host: Callable[[int], str] = lambda rank: "host"
    timed: bool = False
    """Whether starts and ends of collectives are known."""
    ends: bool = True
    device: str = "cpu"

    def records(self) -> list[list[Record]]:
        """Records of each rank."""
        files = [self._head(rank) for rank in range(self.ranks)]
        now = [self.begins + self.startup] * self.ranks
        noise = random.Random(self.seed)
        for step in range(1, self.steps + 1):
            self._step(step, now, files, noise)
        if self.ends:
            for rank, file in enumerate(files):
                file.append({"k": "end", "t": now[rank] - self._zero(), "how": "exit"})
        return files

    def _zero(self) -> int:
        return self.begins + self.startup // 2

    def _head(self, rank: int) -> list[Record]:
        ahead = self.clock_ahead.get(rank, 0)
        return [
            {
                "k": "start",
                "v": 1,
                "rank": rank,
                "world": self.ranks,
                "local_rank": rank,
                "attempt": self.attempt,
                "host": f"host{rank}" if ahead else self.host(rank),
                "pid": 100 + rank,
                "unix_ns": EPOCH_NS + 1000 * (self._zero() + ahead),
                "began_us": -(self.startup // 2),
                "device": self.device,
                "framework": ["torch"],
                "versions": {"torch": "2.9"},
            }
        ]

    def _step(
        self, step: int, now: list[int], files: list[list[Record]], noise: random.Random
    ) -> None:
        spans: list[list[Any]] = []
        arrivals: list[list[int]] = []
        began = list(now)
        more = [dict(self.extra(rank, step)) for rank in range(self.ranks)]
        for rank in range(self.ranks):
            at, mine = now[rank] + more[rank].get("gap", 0), list[Any]()
            for letter, usual in (("c", 0), ("v", 0), ("d", self.data), ("f", self.forward)):
                length = self._length(letter, usual, more[rank], noise)
                at = _add(mine, letter, at, length, began[rank])
            if collected := more[rank].get("g", 0):  # inside the forward pass
                mine[-1] += collected
                mine += ["g", at - began[rank], collected]
                at += collected
            at += self.gap
            work = self._length("b", self.backward, more[rank], noise)
            arrivals.append([at + work * (i + 1) // self.buckets for i in range(self.buckets)])
            spans.append(mine)
            now[rank] = at
        until = max(some[-1] for some in arrivals) + self.transfer
        for rank in range(self.ranks):
            _add(spans[rank], "b", now[rank], until - now[rank], began[rank])
            at = until + self.gap
            length = self.optimizer + more[rank].get("o", 0)
            now[rank] = _add(spans[rank], "o", at, length, began[rank])
            files[rank] += self._written(step, rank, began[rank], now[rank], spans[rank])
            files[rank].append(self._collectives(step, arrivals, rank))

    def _length(
        self, letter: str, usual: int, more: Mapping[str, int], noise: random.Random
    ) -> int:
        factor = 1.0 + self.jitter * noise.uniform(-1, 1) if letter in "fb" else 1.0
        return round(usual * factor) + more.get(letter, 0)

    def _written(
        self, step: int, rank: int, began: int, end: int, spans: list[Any]
    ) -> list[Record]:
        record = {
            "k": "s",
            "n": step,
            "o": self.first_count + step - 1,
            "t": end - self._zero(),
            "d": end - began,
            "p": spans,
            "tok": self.tokens(rank, step),
            "smp": 4,
            "gc": [0, 0],
            "loss": 10.0 / step,
        }
        return [record]

    def _collectives(self, step: int, arrivals: list[list[int]], rank: int) -> Record:
        mine = [at - self._zero() for at in arrivals[rank]]
        deltas = [mine[0], *(b - a for a, b in pairwise(mine))]
        record: Record = {
            "k": "c",
            "g": "0",
            "r": list(range(self.ranks)),
            "o": "allreduce",
            "q": (step - 1) * self.buckets,
            "a": deltas,
            "z": 25_000_000,
        }
        if self.timed:
            last = [max(some[i] for some in arrivals) for i in range(self.buckets)]
            record["e"] = [
                [0, last[i] + self.transfer - arrivals[rank][i]] for i in range(self.buckets)
            ]
        return record

    def write(self, folder: Path) -> Path:
        """Write the files of all ranks."""
        folder.mkdir(exist_ok=True, parents=True)
        for rank, records in enumerate(self.records()):
            path = folder / f"rank-{rank:05d}.attempt-{self.attempt}.cfr"
            path.write_bytes(MAGIC + packed_all(records))
        return folder


def _add(spans: list[Any], letter: str, at: int, length: int, began: int) -> int:
    """Add a span; the moment at which it ends."""
    if length > 0:
        spans += [letter, at - began, length]
    return at + length
