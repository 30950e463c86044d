"""Findings: what is wrong, the evidence, the cost and the remedy; no second is claimed twice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from computeflow.errors import InputError, LedgerError
from computeflow.ledger.accounts import account
from computeflow.ledger.book import Ledger, is_within
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
class ClaimedSeconds:
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
    claims: tuple[ClaimedSeconds, ...]
    """Its own gap, and the wait that it causes in other accounts."""
    evidence: tuple[Evidence, ...]
    confidence: float
    """The measured precision of the rule."""
    ranks: tuple[int, ...] = ()
    remedy: Remedy | None = None
    usd_per_hour: float | None = None
    steady: bool = True
    """It happens in most of the window's steps; else its share here is not the run's."""
    joules: float | None = None
    """Energy of its GPU-seconds within the window; None where power is unknown."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedAccount:
    """An account of a ledger, what findings claim of it, and the rest."""

    account: str
    gpu_seconds: float
    claimed_gpu_seconds: float

    @property
    def rest_gpu_seconds(self) -> float:
        """Never below zero: claims are settled, and sums of floats differ in the last digit."""
        return max(self.gpu_seconds - self.claimed_gpu_seconds, 0.0)


def balance(ledger: Ledger, findings: Iterable[Finding]) -> list[ClaimedAccount]:
    """What settled findings claim of each account of the ledger; a claim counts where it is booked."""
    booked = ledger.accounts
    claimed = dict.fromkeys(booked, 0.0)
    for claim in (claim for finding in findings for claim in finding.claims):
        name = next((name for name in booked if is_within(claim.account, name)), None)
        if name is not None:
            claimed[name] += claim.gpu_seconds
    return [
        ClaimedAccount(account=name, gpu_seconds=seconds, claimed_gpu_seconds=claimed[name])
        for name, seconds in booked.items()
    ]


def check_claimed_seconds(findings: Iterable[Finding], lines: Sequence[Gap]) -> None:
    """A GPU-second is claimed once: no line is claimed beyond its gap, nor all beyond the total.

    A claim on a parent (`comm`) draws on what its children's lines have left. Raises `LedgerError`
    that names the account and the findings that share it.
    """
    every = list(findings)
    slack = 1e-9 * math.fsum(abs(line.measured) + abs(line.expected) for line in lines)
    left = [max(line.gpu_seconds, 0.0) for line in lines]
    claims = [(f.rule, c) for f in every for c in f.claims if c.gpu_seconds]
    for rule, claim in sorted(claims, key=lambda pair: len(_drawn_on(pair[1].account, lines))):
        _draw(rule, claim, lines, left, slack, every)
    _check_total(math.fsum(claim.gpu_seconds for _, claim in claims), lines, slack)


def _check_total(claimed: float, lines: Sequence[Gap], slack: float) -> None:
    total = math.fsum(line.gpu_seconds for line in lines)
    if claimed > max(total, 0.0) + slack:
        raise LedgerError(
            f"findings claim {claimed:g} GPU-seconds of a total gap of {total:g}: some accounts ran "
            "better than expected, claim less"
        )


def _draw(
    rule: str,
    claim: ClaimedSeconds,
    lines: Sequence[Gap],
    left: list[float],
    slack: float,
    found: Sequence[Finding],
) -> None:
    """Take a claim out of what its lines have left."""
    indices = _drawn_on(claim.account, lines)
    if not indices:
        raise LedgerError(f"{claim.account}: claimed, but no line of the comparison holds it")
    missing = claim.gpu_seconds
    for index in indices:
        taken = min(left[index], missing)
        left[index] -= taken
        missing -= taken
    if missing > slack:
        gap = math.fsum(max(lines[index].gpu_seconds, 0.0) for index in indices)
        sharing = [
            f.rule
            for f in found
            if any(set(_drawn_on(c.account, lines)) & set(indices) for c in f.claims)
        ]
        raise LedgerError(
            f"{claim.account}: {rule} claims {missing:g} GPU-seconds beyond a gap of {gap:g}; claimed "
            f"by {', '.join(sharing)}"
        )


def _drawn_on(name: str, lines: Sequence[Gap]) -> list[int]:
    """The line that holds the account; for a parent that was compared split, those below it."""
    exact = [i for i, line in enumerate(lines) if any(is_within(name, a) for a in line.accounts)]
    if exact:
        return exact[:1]
    return [i for i, line in enumerate(lines) if any(is_within(a, name) for a in line.accounts)]
