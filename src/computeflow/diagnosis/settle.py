"""A GPU-second is claimed once: `settle` draws findings from the gaps, the surest cause first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from computeflow.ledger import Claim, Finding, Gap, Ledger, Remedy, check_claims
from computeflow.ledger.book import is_within

LEAST_LEFT = 0.5
"""Of what a finding claims: with less of it left to claim, others have said it already."""
_ORDER = ("checkpoint-stall", "input-stall", "pageable-copy", "gc-pause", "memory-pressure",
          "straggler-rank", "imbalance", "slow-link", "matmul-precision", "unfused-attention",
          "recompute-excess", "unfused-optimizer", "host-sync", "underfilled", "launch-bound",
          "exposed-comm")  # fmt: skip
"""Causes that are seen directly before those that are predicted."""


def lines_without_expectation(measured: Ledger, findings: Sequence[Finding]) -> list[Gap]:
    """Each account against what its findings leave of it, where nothing was predicted."""
    wanted: dict[str, float] = {}
    for finding in findings:
        for claim in finding.claims:
            wanted[claim.account] = wanted.get(claim.account, 0.0) + claim.gpu_seconds
    return [
        Gap(accounts=(name,), measured=seconds, expected=max(seconds - wanted.get(name, 0.0), 0.0))
        for name, seconds in measured.accounts.items()
    ]


def settle(findings: Sequence[Finding], lines: Sequence[Gap]) -> list[Finding]:
    """The same findings, none beyond the gap of its lines; those that are left with little go."""
    left = {line.label: max(line.gpu_seconds, 0.0) for line in lines}
    room = max(sum(line.gpu_seconds for line in lines), 0.0)
    kept: list[Finding] = []
    for finding in sorted(findings, key=_place):
        claims: list[Claim] = []
        rest, space = dict(left), room
        for claim in finding.claims:
            taken = 0.0
            for line in _lines_of(claim.account, lines):
                part = min(rest[line.label], claim.gpu_seconds - taken, space)
                rest[line.label] -= part
                space -= part
                taken += part
            claims.append(replace(claim, gpu_seconds=taken))
        total = sum(claim.gpu_seconds for claim in claims)
        if total < LEAST_LEFT * finding.gpu_seconds or not total:
            continue  # what it would have claimed is left to others
        left, room = rest, space
        kept.append(replace(finding, claims=tuple(claims), remedy=_limited(finding, total)))
    check_claims(kept, lines)
    return sorted(kept, key=lambda finding: -finding.gpu_seconds)


def _place(finding: Finding) -> int:
    return _ORDER.index(finding.rule) if finding.rule in _ORDER else len(_ORDER)


def _lines_of(account: str, lines: Sequence[Gap]) -> list[Gap]:
    exact = [line for line in lines if any(is_within(account, name) for name in line.accounts)]
    return exact[:1] or [
        line for line in lines if any(is_within(name, account) for name in line.accounts)
    ]


def _limited(finding: Finding, total: float) -> Remedy | None:
    """Its remedy gains no more than the finding may claim."""
    remedy = finding.remedy
    if remedy is None or remedy.gain_gpu_seconds is None:
        return remedy
    gain = min(remedy.gain_gpu_seconds, total)
    low = None if remedy.gain_low is None else min(remedy.gain_low, gain)
    high = None if remedy.gain_high is None else max(gain, min(remedy.gain_high, total))
    return replace(remedy, gain_gpu_seconds=gain, gain_low=low, gain_high=high)
