"""Findings: what is wrong, the proof, what it costs and what to do; and that nothing is sold twice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from computeflow.errors import InputError, LedgerError
from computeflow.ledger.accounts import account
from computeflow.ledger.gaps import Gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One observation that supports a finding, and where to look it up."""

    what: str
    where: str
    value: float | None = None
    unit: str = ""
    expected: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A concrete change, and the GPU-seconds of the window that it should give back."""

    change: str
    command: str = ""
    """The flag, configuration line or command, as the user's framework spells it."""
    gain_gpu_seconds: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    risk: str = ""

    def __post_init__(self) -> None:
        known = [g for g in (self.gain_low, self.gain_gpu_seconds, self.gain_high) if g is not None]
        if known != sorted(known):
            raise InputError(f"remedy {self.change!r}: its gain is outside its own range")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """GPU-seconds of one account that a finding says it explains."""

    account: str
    gpu_seconds: float

    def __post_init__(self) -> None:
        account(self.account)
        if not (math.isfinite(self.gpu_seconds) and self.gpu_seconds >= 0):
            raise LedgerError(f"{self.account}: {self.gpu_seconds:g} GPU-seconds claimed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    rule: str
    title: str
    account: str
    """The account it is booked against: the first of its claims."""
    claims: tuple[Claim, ...]
    """Its own gap, and the wait that it causes in other accounts."""
    evidence: tuple[Evidence, ...]
    confidence: float
    """The measured precision of the rule."""
    ranks: tuple[int, ...] = ()
    remedy: Remedy | None = None
    usd_per_hour: float | None = None

    def __post_init__(self) -> None:
        account(self.account)
        if not self.evidence:
            raise InputError(f"finding {self.rule}: no evidence, no finding")
        if not self.claims or self.claims[0].account != self.account:
            raise InputError(f"finding {self.rule}: its first claim must be on {self.account}")
        if not 0 < self.confidence <= 1:
            raise InputError(
                f"finding {self.rule}: confidence {self.confidence:g} is not in (0, 1]"
            )

    @property
    def gpu_seconds(self) -> float:
        return math.fsum(claim.gpu_seconds for claim in self.claims)


def check_claims(findings: Iterable[Finding], lines: Sequence[Gap]) -> None:
    """A GPU-second is claimed once: no line is claimed beyond its gap, nor all beyond the total.

    Raises `LedgerError` that names the account and the findings that share it.
    """
    found = list(findings)
    claimed: dict[tuple[str, ...], float] = {}
    for finding in found:
        for claim in finding.claims:
            line = _line_of(claim.account, lines)
            claimed[line.accounts] = claimed.get(line.accounts, 0.0) + claim.gpu_seconds
    for line in lines:
        taken = claimed.get(line.accounts, 0.0)
        if taken > max(line.gpu_seconds, 0.0) + _slack(lines):
            rules = [f.rule for f in found if any(_covers(line, c.account) for c in f.claims)]
            raise LedgerError(
                f"{line.label}: {taken:g} GPU-seconds claimed by {', '.join(rules)} of a gap of "
                f"{max(line.gpu_seconds, 0.0):g}"
            )
    total = math.fsum(line.gpu_seconds for line in lines)
    if math.fsum(claimed.values()) > max(total, 0.0) + _slack(lines):
        raise LedgerError(
            f"findings claim {math.fsum(claimed.values()):g} GPU-seconds of a total gap of "
            f"{total:g}: some accounts ran better than expected, claim less"
        )


def _line_of(name: str, lines: Sequence[Gap]) -> Gap:
    for line in lines:
        if _covers(line, name):
            return line
    raise LedgerError(f"{name}: claimed, but no line of the comparison holds it")


def _covers(line: Gap, name: str) -> bool:
    return any(name == a or name.startswith(a + ".") for a in line.accounts)


def _slack(lines: Sequence[Gap]) -> float:
    return 1e-9 * math.fsum(abs(line.measured) + abs(line.expected) for line in lines)
