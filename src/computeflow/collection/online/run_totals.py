"""`RunTotals`: where all GPU-seconds of a run went since it began, piece by piece as it goes on.

Windows of a run that is watched lie one after the other without a gap: each is booked by the ledger
that `audit` makes of it, and added. The ranks that are looked at stand for all of the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from computeflow.ledger import Ledger
from computeflow.telemetry.run_folders.rank_file import RankFile

EVERY_SECONDS = 10.0
_BIN = 0.01
"""Relative width of the classes of step times."""


@dataclass(slots=True)
class RunTotals:
    booked: dict[str, float] = field(default_factory=dict)
    """GPU-seconds by account."""
    until: float = 0.0
    """All before is booked, Unix seconds."""
    kept_steps: int = 0
    """Steps that were not done again later."""
    attempt: int = -1
    _done: int = -1
    """The optimizer's own count, up to which an attempt before this one has come."""
    _seen: int = -1
    _lengths: dict[int, int] = field(default_factory=dict)
    """How often steps took so long, by classes."""

    def begin_attempt(self, number: int, world: int, began: float, warm: float) -> None:
        """An attempt that has begun to train: its processes began, and its first steps ended, then."""
        if number == self.attempt:
            return
        first = not self.booked
        self._done = max(self._done, self._seen)
        begin = began if first else max(self.until, 0.0)
        self._add("startup" if first else "restart", world * max(warm - begin, 0.0))
        self.attempt, self.until = number, max(warm, self.until)

    def take(
        self, files: Sequence[RankFile], ledger: Ledger | None, world: int, edge: float
    ) -> None:
        """Book up to `edge` what a window shows that ends there."""
        if ledger is None or edge <= self.until:
            return
        kept = {name: s for name, s in ledger.accounts.items() if name not in ("startup", "lost")}
        total = sum(kept.values())
        if total <= 0:
            return
        again = self._count(files[0])
        seconds = world * (edge - self.until)
        self._add("lost", again * seconds)
        for name, gpu_seconds in kept.items():
            self._add(name, (1 - again) * seconds * gpu_seconds / total)
        self.until = edge

    def goodput(self, world: int) -> float | None:
        """Kept steps at the median speed over all GPU-seconds; None before anything is booked."""
        total = sum(self.booked.values())
        if not self._lengths or total <= 0:
            return None
        order = sorted(self._lengths)
        counts = np.cumsum([self._lengths[each] for each in order])
        middle = order[int(np.searchsorted(counts, counts[-1] / 2))]
        usual = math.exp(middle * _BIN) / 1e6
        return min(world * self.kept_steps * usual / total, 1.0)

    def restore(
        self, booked: Mapping[str, float], until: float, kept_steps: int, attempt: int
    ) -> None:
        """Go on from what was booked before a restart of the watch."""
        self.booked, self.until = dict(booked), until
        self.kept_steps, self.attempt = kept_steps, attempt

    def _count(self, file: RankFile) -> float:
        """Count the steps that are new in a window; the share of them that were done before."""
        rows = file.steps.end > self.until * 1e6
        own = file.steps.own[rows]
        again = (own >= 0) & (own <= self._done)
        self.kept_steps += int(np.count_nonzero(~again))
        self._seen = max(self._seen, int(own.max(initial=-1)))
        lengths = np.maximum((file.steps.end - file.steps.begin)[rows], 1)
        classes, counts = np.unique(np.round(np.log(lengths) / _BIN), return_counts=True)
        for each, count in zip(classes.astype(int).tolist(), counts.tolist(), strict=True):
            self._lengths[each] = self._lengths.get(each, 0) + count
        return float(again.mean()) if len(again) else 0.0

    def _add(self, account: str, gpu_seconds: float) -> None:
        if gpu_seconds > 0:
            self.booked[account] = self.booked.get(account, 0.0) + gpu_seconds
