"""`RunTotals`: where the GPU-seconds of a run went since it began, piece by piece as steps end.

Windows of a run that is watched lie one after the other without a gap: each is booked by the ledger
that `audit` makes of it, and added. The ranks that are looked at stand for all of the run. What has
passed since the last step is not in it: only the end of a step says what it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from computeflow.collection.online.live_values import BookState
from computeflow.ledger import Ledger
from computeflow.telemetry.run_folders.rank_file import RankFile

EVERY_SECONDS = 10.0


@dataclass(slots=True)
class RunTotals:
    booked: dict[str, float] = field(default_factory=dict)
    """GPU-seconds by account."""
    until: float = 0.0
    """All before is booked, Unix seconds."""
    attempt: int = -1
    kept_steps: int = 0
    """Steps that were not done again later."""
    _done: int = -1
    """Highest optimizer step that an earlier attempt reached."""
    _seen: int = -1
    """Highest optimizer step that was counted."""

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
        again = self._count(files[0])
        seconds = world * (edge - self.until)
        self._add("lost", again * seconds)
        for name, gpu_seconds in kept.items():
            self._add(name, (1 - again) * seconds * gpu_seconds / total)
        self.until = edge

    def state(self) -> BookState:
        """What `restore` goes on from after a restart of the watch, with the kept steps."""
        return BookState(
            booked=dict(self.booked),
            until=self.until,
            attempt=self.attempt,
            done=self._done,
            seen=self._seen,
        )

    def restore(self, before: BookState, kept_steps: int) -> None:
        """Go on from what was booked before."""
        self.booked, self.until = dict(before.booked), before.until
        self.attempt, self._done, self._seen = before.attempt, before.done, before.seen
        self.kept_steps = kept_steps

    def _count(self, file: RankFile) -> float:
        """Count the steps that are new in a window; the share of them that were done before."""
        own = file.steps.own[file.steps.end > self.until * 1e6]
        again = (own >= 0) & (own <= self._done)
        self.kept_steps += int(np.count_nonzero(~again))
        self._seen = max(self._seen, int(own.max(initial=-1)))
        return float(again.mean()) if len(again) else 0.0

    def _add(self, account: str, gpu_seconds: float) -> None:
        if gpu_seconds > 0:
            self.booked[account] = self.booked.get(account, 0.0) + gpu_seconds
