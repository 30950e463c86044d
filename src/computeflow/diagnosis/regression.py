"""`regressions`: accounts that grew against an earlier recording of the same job.

Both ledgers are compared at equal work. Growth that another finding explains is not counted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from computeflow.diagnosis.figures import confidence
from computeflow.diagnosis.rule import Draft, report, seconds_evidence
from computeflow.diagnosis.trace_case import PRACTICAL
from computeflow.ledger import Finding, Gap, Ledger, Remedy
from computeflow.ledger.book import is_within


def regressions(
    measured: Ledger, lines: Sequence[Gap], findings: Sequence[Finding], source: str
) -> list[Finding]:
    """Regressions as findings; `lines`: the measured ledger against the earlier one.

    Together they claim no more than the work takes longer: time that moved between accounts is no loss.
    """
    drafts = [
        draft
        for line in lines
        for draft in _growth(line, line.gpu_seconds - _explained(line, findings), measured, source)
    ]
    grown = [draft.sign("regression", confidence("regression")) for draft in drafts]
    ordered = sorted(grown, key=lambda finding: -finding.gpu_seconds)
    return _within(sum(line.gpu_seconds for line in lines), ordered, measured)


def _explained(line: Gap, findings: Sequence[Finding]) -> float:
    """GPU-seconds of a line that findings claim already."""
    return sum(
        claim.gpu_seconds
        for finding in findings
        for claim in finding.claims
        if any(is_within(claim.account, name) for name in line.accounts)
    )


def _growth(line: Gap, left: float, measured: Ledger, source: str) -> list[Draft]:
    if left < PRACTICAL * measured.gpu_seconds:
        return []
    title = f"{line.label} is new"
    if line.expected > 0:
        title = f"{line.label} grew by {100 * left / max(line.expected, 1e-12):.0f} %"
    return report(
        title,
        [(_booked(line, measured), left)],
        [seconds_evidence(f"{line.label} for the same work", source, line.measured, line.expected)],
        Remedy(
            change="find what changed between the two recordings: code, libraries, nodes",
            gain_gpu_seconds=left,
            gain_low=0.0,
            gain_high=left,
        ),
    )


def _within(grown: float, findings: list[Finding], measured: Ledger) -> list[Finding]:
    """The largest regressions, up to the total growth."""
    kept = []
    for finding in findings:
        claimed = min(finding.gpu_seconds, grown)
        if claimed < PRACTICAL * measured.gpu_seconds:
            break
        grown -= claimed
        remedy = finding.remedy
        assert remedy is not None
        kept.append(
            replace(
                finding,
                claims=(replace(finding.claims[0], gpu_seconds=claimed),),
                remedy=replace(remedy, gain_gpu_seconds=claimed, gain_high=claimed),
            )
        )
    return kept


def _booked(line: Gap, measured: Ledger) -> str:
    """The account that holds most, of those compared together."""
    return max(line.accounts, key=measured.booked)
