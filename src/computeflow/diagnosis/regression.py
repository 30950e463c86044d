"""What grew against an earlier recording of the same job: `regressions`.

Both ledgers are compared at equal work. Growth that another finding explains is its own already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from computeflow.diagnosis.case import PRACTICAL
from computeflow.diagnosis.figures import confidence
from computeflow.ledger import Claim, Evidence, Finding, Gap, Ledger, Remedy
from computeflow.ledger.book import is_within


def regressions(
    measured: Ledger, lines: Sequence[Gap], findings: Sequence[Finding], source: str
) -> list[Finding]:
    """`lines`: of the measured ledger against the earlier one. Together they claim no more than the
    work takes longer than it did: what moved from one account to another is no loss.
    """
    grown = sum(line.gpu_seconds for line in lines)
    found: list[Finding] = []
    for line in lines:
        explained = sum(
            claim.gpu_seconds
            for finding in findings
            for claim in finding.claims
            if any(is_within(claim.account, name) for name in line.accounts)
        )
        left = line.gpu_seconds - explained
        if left < PRACTICAL * measured.gpu_seconds or "compute.model" in line.accounts[:1]:
            continue
        found.append(
            Finding(
                rule="regression",
                title=f"{line.label} grew by {left / max(line.expected, 1e-12):.0%} of what it was"
                if line.expected > 0
                else f"{line.label} is new",
                account=_booked(line, measured),
                claims=(Claim(account=_booked(line, measured), gpu_seconds=left),),
                evidence=(
                    Evidence(
                        what=f"{line.label} for the same work", where=source, value=line.measured,
                        unit="s", expected=line.expected,
                    ),
                ),
                confidence=confidence("regression"),
                remedy=Remedy(
                    change="find what changed between the two recordings: code, libraries, nodes",
                    gain_gpu_seconds=left, gain_low=0.0, gain_high=left,
                ),
            )
        )  # fmt: skip
    return _within(grown, sorted(found, key=lambda finding: -finding.gpu_seconds), measured)


def _within(grown: float, found: list[Finding], measured: Ledger) -> list[Finding]:
    """The largest first, while there is growth left for them."""
    kept = []
    for finding in found:
        claimed = min(finding.gpu_seconds, grown)
        if claimed < PRACTICAL * measured.gpu_seconds:
            break
        grown -= claimed
        remedy = finding.remedy
        assert remedy is not None
        kept.append(
            replace(
                finding, claims=(replace(finding.claims[0], gpu_seconds=claimed),),
                remedy=replace(remedy, gain_gpu_seconds=claimed, gain_high=claimed),
            )
        )  # fmt: skip
    return kept


def _booked(line: Gap, measured: Ledger) -> str:
    """Of accounts that were compared together, the one that holds most."""
    return max(line.accounts, key=measured.booked)
