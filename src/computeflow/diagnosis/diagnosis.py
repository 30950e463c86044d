"""`Diagnosis`: findings, skipped rules and the expectation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from computeflow.diagnosis.as_it_runs import AsItRuns
from computeflow.ledger import Finding, Gap, Ledger
from computeflow.ledger.gaps import model_work_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRule:
    """A rule that was skipped for a missing signal."""

    rule: str
    missing: str
    """The signal it needs, and how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What was expected of the measured work: of a plan, or derived from the recording."""

    ledger: Ledger
    """A plan's is of one step."""
    source: str
    """A file, or how it was derived."""
    is_plan: bool = True
    """It is in a file, not derived from the recording."""
    assumed: tuple[str, ...] = ()
    work_ratio: float | None = None
    """Measured work over that of the ledger; None: by the model's FLOPs."""

    @property
    def name(self) -> str:
        """The source; of a plan its file without folders."""
        return PurePath(self.source).name if self.is_plan else self.source

    def ratio(self, measured: Ledger) -> float:
        known = self.work_ratio
        return model_work_ratio(measured, self.ledger) if known is None else known

    def at_equal_work(self, measured: Ledger) -> Ledger:
        """The expected ledger for the work of the measured one."""
        return self.ledger.scale(self.ratio(measured))


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    findings: tuple[Finding, ...]
    """Most expensive first."""
    abstained: tuple[SkippedRule, ...]
    as_it_runs: AsItRuns | None = None
    """The step without its profiler; None where the recording cannot be replayed."""
    not_replayed: str = ""
    """Why it cannot."""
    expected: Expected | None = None
    expected_reason: str = ""
    """Why there is no expectation."""
    gaps: tuple[Gap, ...] = ()
    """Measured against expected, line by line, at equal work."""
    combined_gain: float | None = None
    """GPU-seconds of the window, all remedies together; None where nothing was found."""
    notes: tuple[str, ...] = ()

    def step_seconds(self, recorded: float | None) -> float | None:
        """The step of which gains are shares: as it runs, where that is known."""
        return recorded if self.as_it_runs is None else self.as_it_runs.step_seconds
