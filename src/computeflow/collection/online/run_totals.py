"""`RunTotals`: where the GPU-seconds of a run went since it began, piece by piece as steps end.

Windows of a run that is watched lie one after the other without a gap: each is booked by the ledger
that `audit` makes of it, and added. The ranks that are looked at stand for all of the run. What has
passed since the last step is not in it: only the end of a step says what it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from computeflow.collection.online.live_values import BookState, Pace
from computeflow.ledger import Ledger
from computeflow.telemetry.run_folders.phases import Ints
from computeflow.telemetry.run_folders.rank_file import RankFile

EVERY_SECONDS = 10.0
_BIN = 0.01
"""Relative width of the classes of step times."""


@dataclass(slots=True)
class _StepTimes:
    """Steps of the attempts with one number of ranks."""

    kept: int = 0
    usual_seconds: float = 0.0
    """Their median."""
    lengths: dict[int, int] = field(default_factory=dict)
    """How often steps took so long, by classes."""

    def count(self, lengths: Ints) -> None:
        """Count steps that took so many microseconds."""
        classes = np.round(np.log(np.maximum(lengths, 1)) / _BIN).astype(int)
        for each in classes.tolist():
            self.lengths[each] = self.lengths.get(each, 0) + 1
        order = sorted(self.lengths)
        if order:
            counts = np.cumsum([self.lengths[each] for each in order])
            middle = order[int(np.searchsorted(counts, counts[-1] / 2))]
            self.usual_seconds = math.exp(middle * _BIN) / 1e6


@dataclass(slots=True)
class RunTotals:
    booked: dict[str, float] = field(default_factory=dict)
    """GPU-seconds by account."""
    until: float = 0.0
    """All before is booked, Unix seconds."""
    attempt: int = -1
    _done: int = -1
    """Highest optimizer step that an earlier attempt reached."""
    _seen: int = -1
    """Highest optimizer step that was counted."""
    _times: dict[int, _StepTimes] = field(default_factory=dict)
    """By world size."""

    @property
    def kept_steps(self) -> int:
        """Steps that were not done again later."""
        return sum(each.kept for each in self._times.values())

    def begin_attempt(self, number: int, world: int, began: float, warm: float) -> None:
        """An attempt that has begun to train: its processes began, and its first steps ended, then."""
        if number <= self.attempt and began <= self.until:
            return
        first = not self.booked
        self._done = max(self._done, self._seen)
        begin = began if first else max(self.until, 0.0)
        self._add("startup" if first else "restart", world * max(warm - begin, 0.0))
        self.attempt, self.until = number, max(warm, self.until)

    def take(
        self,
        files: Sequence[RankFile],
        ledger: Ledger | None,
        world: int,
        edge: float,
        before: Ledger | None = None,
    ) -> None:
        """Book up to `edge` what a window shows that ends there; `before` is the part of it that was
        booked, where that may be most of it.
        """
        if ledger is None or edge <= self.until:
            return
        known = {} if before is None else before.accounts
        kept = {
            name: max(seconds - known.get(name, 0.0), 0.0)
            for name, seconds in ledger.accounts.items()
            if name not in ("startup", "lost")
        }
        total = sum(kept.values())
        if total <= 0:
            return
        again = self._count(files[0], world)
        seconds = world * (edge - self.until)
        self._add("lost", again * seconds)
        for name, gpu_seconds in kept.items():
            self._add(name, (1 - again) * seconds * gpu_seconds / total)
        self.until = edge

    def goodput(self, gpu_seconds: float) -> float | None:
        """Kept steps at the median speed of their world size over so many GPU-seconds; None before
        any is booked.
        """
        if not self._times or gpu_seconds <= 0:
            return None
        kept = sum(world * each.kept * each.usual_seconds for world, each in self._times.items())
        return min(kept / gpu_seconds, 1.0)

    def state(self) -> BookState:
        """What `restore` goes on from after a restart of the watch."""
        return BookState(
            booked=dict(self.booked),
            until=self.until,
            attempt=self.attempt,
            done=self._done,
            seen=self._seen,
            paces=tuple(
                Pace(
                    world=world,
                    kept_steps=each.kept,
                    steps=sum(each.lengths.values()),
                    step_seconds=each.usual_seconds,
                )
                for world, each in self._times.items()
            ),
        )

    def restore(self, before: BookState) -> None:
        """Go on from what was booked before. Neglected: how steps of then varied about their median."""
        self.booked, self.until = dict(before.booked), before.until
        self.attempt, self._done, self._seen = before.attempt, before.done, before.seen
        self._times = {}
        for pace in before.paces:
            middle = round(math.log(max(pace.step_seconds * 1e6, 1.0)) / _BIN)
            self._times[pace.world] = _StepTimes(
                kept=pace.kept_steps,
                usual_seconds=pace.step_seconds,
                lengths={middle: pace.steps},
            )

    def _count(self, file: RankFile, world: int) -> float:
        """Count the steps that are new in a window; the share of them that were done before."""
        rows = file.steps.end > self.until * 1e6
        own = file.steps.own[rows]
        again = (own >= 0) & (own <= self._done)
        times = self._times.setdefault(world, _StepTimes())
        times.kept += int(np.count_nonzero(~again))
        self._seen = max(self._seen, int(own.max(initial=-1)))
        times.count((file.steps.end - file.steps.begin)[rows])
        return float(again.mean()) if len(again) else 0.0

    def _add(self, account: str, gpu_seconds: float) -> None:
        if gpu_seconds > 0:
            self.booked[account] = self.booked.get(account, 0.0) + gpu_seconds
