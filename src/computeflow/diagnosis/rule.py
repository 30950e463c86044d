"""`Rule` and its outcome: drafts of findings, or the missing signal.

Sources only read and a rule judges, so thresholds, remedies and texts of findings are in one place. The
rule book adds id and confidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from computeflow.diagnosis.trace_case import TraceCase
from computeflow.ledger import ClaimedSeconds, Evidence, Finding, Remedy
from computeflow.replay.edits import Edit
from computeflow.telemetry.source_reports import SourceReport

TRACE = "trace"
"""The kind of source of all profiler traces; other kinds have their own names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A finding without its rule's id and confidence."""

    title: str
    claims: tuple[ClaimedSeconds, ...]
    evidence: tuple[Evidence, ...]
    remedy: Remedy
    ranks: tuple[int, ...] = ()
    steady: bool = True
    edit: Edit | None = None
    """What its remedy changes in the replayed step, which tells its gain; None: it states its own."""
    bounds: tuple[Edit, Edit] | None = None
    """The edit as it gains least and most."""
    least_seconds: float = 0.0
    """The shortest step that the remedy allows: what it moves elsewhere is the limit then."""
    own: bool = True
    """Whether the cause is the user's own; what frameworks do by themselves must gain more."""
    least_share: float = 0.0
    """Share of the step that it must gain at least, where its name says more than that it gains."""
    max_busy: float | None = None
    """For a cause that is what others leave: it is tried after them, and only where the device is busy
    for at most this share of the step that they leave."""

    def sign(self, rule: str, confidence: float) -> Finding:
        return Finding(
            rule=rule,
            title=self.title,
            account=self.claims[0].account,
            claims=self.claims,
            evidence=self.evidence,
            confidence=confidence,
            ranks=self.ranks,
            remedy=self.remedy,
            steady=self.steady,
        )


@dataclass(frozen=True, slots=True)
class Missing:
    """A signal that a rule needs and the source lacks."""

    signal: str


NO_DEVICE = Missing("a GPU: this run computes on the host")
Outcome = Sequence[Draft | Missing] | Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRule:
    """How a rule judges one kind of source that is no trace."""

    judge: Callable[[SourceReport], Outcome]
    confidence: float
    because: str
    """What the confidence is based on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    id: str
    account: str
    """The account of its findings; "" for the account that grew."""
    needs: str
    """The signals it needs, in words."""
    order: int
    """Order of settling claims: directly observed causes before predicted ones."""
    trace: Callable[[TraceCase], Outcome] | None = None
    """Judges traces; its confidence there is measured (`figures.json`)."""
    step: Callable[[TraceCase], Outcome] | None = None
    """Judges a trace whose step is replayed, in the place of `trace`."""
    sources: Mapping[str, SourceRule] = field(default_factory=dict)
    """Judges of other sources, by kind."""

    @property
    def page(self) -> str:
        return f"docs/rules/{self.id}.md"

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of source that the rule judges."""
        return (*((TRACE,) if self.trace or self.step else ()), *self.sources)


def report(
    title: str,
    claims: Sequence[tuple[str, float]],
    evidence: Sequence[Evidence],
    remedy: Remedy,
    ranks: Sequence[int] = (),
    *,
    steady: bool = True,
) -> list[Draft]:
    kept = tuple(
        ClaimedSeconds(account=name, gpu_seconds=max(seconds, 0.0)) for name, seconds in claims
    )
    return [
        Draft(
            title=title,
            claims=kept,
            evidence=tuple(evidence),
            remedy=remedy,
            ranks=tuple(ranks),
            steady=steady,
        )
    ]


def draft(
    title: str,
    accounts: Sequence[str],
    edit: Edit,
    evidence: Sequence[Evidence],
    remedy: Remedy,
    *,
    steady: bool = True,
    bounds: tuple[Edit, Edit] | None = None,
    least_seconds: float = 0.0,
    own: bool = True,
    least_share: float = 0.0,
    max_busy: float | None = None,
) -> list[Draft]:
    """A finding whose gain is still to be replayed; it claims these accounts, in this order."""
    return [
        Draft(
            title=title,
            claims=tuple(ClaimedSeconds(account=name, gpu_seconds=0.0) for name in accounts),
            evidence=tuple(evidence),
            remedy=remedy,
            steady=steady,
            edit=edit,
            bounds=bounds,
            least_seconds=least_seconds,
            own=own,
            least_share=least_share,
            max_busy=max_busy,
        )
    ]


def seconds_evidence(
    what: str, where: str, seconds: float | None, expected: float | None = None
) -> Evidence:
    return Evidence(what=what, where=where, value=seconds, unit="s", expected=expected)
