"""`TraceCase`: everything that a rule looks at in traces."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from computeflow.diagnosis.predicted_gains import PredictedRun
from computeflow.diagnosis.robust import median_and_spread
from computeflow.diagnosis.slow_ranks import RanksTogether
from computeflow.ledger import Ledger
from computeflow.replay.replayed_step import ReplayedStep
from computeflow.telemetry.source_reports import SourceReport
from computeflow.telemetry.traces.job_ledgers import TracedJob
from computeflow.telemetry.traces.rank_measurements import RankMeasurement
from computeflow.telemetry.traces.step_graph import StepGraph

PRACTICAL = 0.03
"""Least share of the window worth reporting. Two recordings of one healthy run on our H200 differ by up
to 3 % themselves."""
DEVIATIONS = 3.0
"""Robust deviations of an account from step to step that a cause in it must exceed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCase:
    audit: TracedJob
    replay: PredictedRun | None
    """The predictor, fitted to this recording; None where it does not understand the job."""
    why_not: str
    """Why there is no replay."""
    framework: str = "torch"
    step: ReplayedStep | None = None
    """The step as it runs, where the recording can be replayed."""
    not_replayed: str = ""
    """Why it cannot be replayed."""
    observed: tuple[SourceReport, ...] = ()
    together: RanksTogether | None = None
    """All ranks replayed together, where there are several and they are understood."""
    not_together: str = ""
    """Why they are not."""

    @property
    def ledger(self) -> Ledger:
        return self.audit.job.ledger

    @property
    def ranks(self) -> Sequence[RankMeasurement]:
        return self.audit.ranks

    @property
    def first(self) -> RankMeasurement:
        return self.audit.ranks[0]

    @property
    def replayed(self) -> ReplayedStep:
        """The step, for rules that judge only replayed ones."""
        assert self.step is not None
        return self.step

    @property
    def graph(self) -> StepGraph:
        return self.replayed.graph

    @property
    def steps(self) -> int:
        return max(len(self.first.steps), 1)

    @property
    def per(self) -> str:
        """The unit of counts, in words."""
        return "in a step" if self.first.steps else "in the window"

    @property
    def on_device(self) -> bool:
        return all(rank.on_device for rank in self.ranks)

    def total(self, value: Callable[[RankMeasurement], float]) -> float:
        """The sum over all ranks."""
        return sum(value(rank) for rank in self.ranks)

    def set_back(self, root: str) -> float:
        """GPU-seconds of idle devices because one cause delayed their hosts."""
        return self.total(lambda rank: rank.signals.setbacks.get(root, 0.0))

    def common(self, account: str, value: Callable[[RankMeasurement], float]) -> bool:
        """Whether a cause is large enough to report, above its account's noise, and on most ranks: else
        one rank is slow.
        """
        shares = [value(rank) / _window(rank) for rank in self.ranks]
        noise = statistics.median(_noise(rank, account) for rank in self.ranks)
        many = sum(share >= max(PRACTICAL, noise) for share in shares)
        return 2 * many > len(shares)

    def steps_with(self, account: str) -> int:
        """Number of the first rank's steps in which an account is large enough to report."""
        values = self.first.by_step.get(account, ())
        least = PRACTICAL * statistics.median(self.first.step_seconds or (0.0,))
        return sum(value >= least for value in values)

    def steady(self, steps: int) -> bool:
        """Whether something seen in so many steps of the window holds for the run."""
        return 2 * steps > self.steps

    def where(self, what: str = "") -> str:
        source = PurePath(self.first.source).name
        if len(self.ranks) > 1:
            source = f"{len(self.ranks)} traces"
        return f"{source}, {self.ledger.window.label}" + (f", {what}" if what else "")


def _noise(rank: RankMeasurement, account: str) -> float:
    """Share of the window by which an account's sum over steps may vary by chance."""
    values = rank.by_step.get(account, ())
    if len(values) < 4:  # too few to tell
        return 0.0
    _, spread = median_and_spread(values)
    return float(DEVIATIONS * spread * len(values) ** 0.5 / _window(rank))


def _window(rank: RankMeasurement) -> float:
    return (rank.window_end - rank.window_start) / 1e9
