"""`settle`: every GPU-second is claimed once; findings draw on the gaps, the surest cause first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from computeflow.diagnosis.rules import find_rule
from computeflow.ledger import ClaimedSeconds, Finding, Gap, Ledger, Remedy, check_claimed_seconds
from computeflow.ledger.book import is_within

_MIN_LEFT = 0.5
"""Least share of a finding's claim that must be left; below it, other findings have reported it."""


def lines_without_expectation(measured: Ledger) -> list[Gap]:
    """Gaps without an expectation: all that an account holds may be claimed."""
    return [
        Gap(accounts=(name,), measured=seconds, expected=0.0)
        for name, seconds in measured.accounts.items()
    ]


def settle(findings: Sequence[Finding], lines: Sequence[Gap]) -> list[Finding]:
    """The findings, each limited to the gap of its lines; those left with little are dropped."""
    left = {line.label: max(line.gpu_seconds, 0.0) for line in lines}
    room = max(sum(line.gpu_seconds for line in lines), 0.0)
    kept: list[Finding] = []
    for finding in sorted(findings, key=lambda finding: find_rule(finding.rule).order):
        claims: list[ClaimedSeconds] = []
        rest, space = dict(left), room
        for claim in finding.claims:
            taken = _draw(claim, lines, rest, space)
            space -= taken
            claims.append(replace(claim, gpu_seconds=taken))
        total = math.fsum(claim.gpu_seconds for claim in claims)
        if total < _MIN_LEFT * finding.gpu_seconds or not total:
            continue  # what it would have claimed is left to others
        left, room = rest, space
        kept.append(replace(finding, claims=tuple(claims), remedy=_limited(finding, total)))
    check_claimed_seconds(kept, lines)
    return sorted(kept, key=lambda finding: -finding.gpu_seconds)


def _draw(
    claim: ClaimedSeconds, lines: Sequence[Gap], left: dict[str, float], room: float
) -> float:
    """GPU-seconds that a claim's lines have left, which are taken out of `left`."""
    taken = 0.0
    for line in _lines_of(claim.account, lines):
        part = min(left[line.label], claim.gpu_seconds - taken, room - taken)
        left[line.label] -= part
        taken += part
    return taken


def _lines_of(account: str, lines: Sequence[Gap]) -> list[Gap]:
    exact = [line for line in lines if any(is_within(account, name) for name in line.accounts)]
    return exact[:1] or [
        line for line in lines if any(is_within(name, account) for name in line.accounts)
    ]


def _limited(finding: Finding, total: float) -> Remedy | None:
    """The remedy, which gains no more than the finding may claim."""
    remedy = finding.remedy
    if remedy is None or remedy.gain_gpu_seconds is None:
        return remedy
    gain = min(remedy.gain_gpu_seconds, total)
    low = None if remedy.gain_low is None else min(remedy.gain_low, gain)
    high = remedy.gain_high
    if high is not None and total < (1 - 1e-9) * finding.gpu_seconds:
        high = max(gain, min(high, total))
    return replace(remedy, gain_gpu_seconds=gain, gain_low=low, gain_high=high)
