"""What a rule looks at in traces: `Case`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from computeflow.diagnosis.robust import median_and_spread
from computeflow.diagnosis.whatif import Replay
from computeflow.ledger import Ledger
from computeflow.telemetry.observed import Observed
from computeflow.telemetry.traces.job import TracedJob
from computeflow.telemetry.traces.measured import RankMeasured

PRACTICAL = 0.03
"""Of the window: what is less is not worth anybody's afternoon. Two recordings of one healthy run on
our H200 differ by up to 3 % themselves."""
DEVIATIONS = 3.0
"""Robust ones of an account from step to step, that what is laid to it must exceed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    audit: TracedJob
    replay: Replay | None
    """The predictor, set on this recording; None where it does not understand the job."""
    why_not: str
    """What it lacks."""
    framework: str = "torch"
    observed: tuple[Observed, ...] = ()

    @property
    def ledger(self) -> Ledger:
        return self.audit.job.ledger

    @property
    def ranks(self) -> Sequence[RankMeasured]:
        return self.audit.ranks

    @property
    def first(self) -> RankMeasured:
        return self.audit.ranks[0]

    @property
    def steps(self) -> int:
        return max(len(self.first.steps), 1)

    @property
    def per(self) -> str:
        """What counts are of, in words."""
        return "in a step" if self.first.steps else "in the window"

    @property
    def on_device(self) -> bool:
        return all(rank.on_device for rank in self.ranks)

    def total(self, value: Callable[[RankMeasured], float]) -> float:
        """Over all ranks."""
        return sum(value(rank) for rank in self.ranks)

    def set_back(self, root: str) -> float:
        """GPU-seconds that devices stood idle because one root had set their hosts back."""
        return self.total(lambda rank: rank.signals.setbacks.get(root, 0.0))

    def common(self, account: str, value: Callable[[RankMeasured], float]) -> bool:
        """Whether it is worth speaking of, above the noise of the account that it is of, and the same
        for most ranks: else one rank is slow.
        """
        shares = [value(rank) / _window(rank) for rank in self.ranks]
        noise = statistics.median(_noise(rank, account) for rank in self.ranks)
        many = sum(share >= max(PRACTICAL, noise) for share in shares)
        return 2 * many > len(shares)

    def steps_with(self, account: str) -> int:
        """Of the first rank's steps, those in which an account is worth speaking of."""
        values = self.first.by_step.get(account, ())
        least = PRACTICAL * statistics.median(self.first.step_seconds or (0.0,))
        return sum(value >= least for value in values)

    def steady(self, steps: int) -> bool:
        """Whether what happens in so many steps of the window can be taken for the run."""
        return 2 * steps > self.steps

    def where(self, what: str = "") -> str:
        source = PurePath(self.first.source).name
        if len(self.ranks) > 1:
            source = f"{len(self.ranks)} traces"
        return f"{source}, {self.ledger.window.label}" + (f", {what}" if what else "")


def _noise(rank: RankMeasured, account: str) -> float:
    """Of the window's share, by which an account's sum over steps may differ by chance."""
    values = rank.by_step.get(account, ())
    if len(values) < 4:  # too few to tell
        return 0.0
    _, spread = median_and_spread(values)
    return float(DEVIATIONS * spread * len(values) ** 0.5 / _window(rank))


def _window(rank: RankMeasured) -> float:
    return (rank.window_end - rank.window_start) / 1e9
