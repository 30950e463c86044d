"""What a rule is, `Rule`, and what it answers: drafts of findings, or the signal it lacks.

A rule judges and the sources only read, so a rule is the one place for a threshold, a remedy and the
words of a finding. It does not sign: its id and its confidence are the book's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from computeflow.diagnosis.case import Case
from computeflow.ledger import Claim, Evidence, Finding, Remedy
from computeflow.telemetry.observed import Observed

TRACE = "trace"
"""The kind of source that every profiler's recording is; the others name themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A finding without its rule's id and confidence."""

    title: str
    claims: tuple[Claim, ...]
    evidence: tuple[Evidence, ...]
    remedy: Remedy
    ranks: tuple[int, ...] = ()
    steady: bool = True

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
    """A rule without its signal."""

    signal: str


NO_DEVICE = Missing("a device: the host computes")
Outcome = Sequence[Draft | Missing] | Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRule:
    """How a rule judges one kind of source that is no trace."""

    judge: Callable[[Observed], Outcome]
    confidence: float
    because: str
    """What this number rests on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    id: str
    account: str
    """That its findings are booked against; "" for the account that grew."""
    needs: str
    """The signals, in words."""
    order: int
    """Its place when claims are settled: causes that are seen directly before those predicted."""
    trace: Callable[[Case], Outcome] | None = None
    """Its confidence there is measured: `figures.json`."""
    sources: Mapping[str, SourceRule] = field(default_factory=dict)
    """By kind."""

    @property
    def page(self) -> str:
        return f"docs/rules/{self.id}.md"

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of source, that it looks at."""
        return (*((TRACE,) if self.trace else ()), *self.sources)


def report(
    title: str,
    claims: Sequence[tuple[str, float]],
    evidence: Sequence[Evidence],
    remedy: Remedy,
    ranks: Sequence[int] = (),
    *,
    steady: bool = True,
) -> list[Draft]:
    kept = tuple(Claim(account=name, gpu_seconds=max(seconds, 0.0)) for name, seconds in claims)
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


def seconds_evidence(
    what: str, where: str, seconds: float | None, expected: float | None = None
) -> Evidence:
    return Evidence(what=what, where=where, value=seconds, unit="s", expected=expected)
