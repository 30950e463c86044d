"""A diagnosis in a terminal: findings, each with its proof and its remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from computeflow.economics import finding_usd_per_hour
from computeflow.ledger import Finding, Ledger
from computeflow.units import format_seconds, format_share
from computeflow.views.cards import evidence_text
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.diagnosis.values import Diagnosis


def finding_tables(found: Diagnosis, ledger: Ledger, price: float | None) -> list[Table]:
    """One table of all, then one for each."""
    if not found.findings:
        text = "nothing that a rule knows"
        return [
            Table(
                title="No findings",
                columns=columns("looked for", "found", wrap="found"),
                rows=((f"{_looked(found)} rules", text),),
                notes=found.notes,
            )
        ]
    rows = [_row(finding, ledger, price) for finding in found.findings]
    notes = list(found.notes)
    if found.combined_gain is not None and len(found.findings) > 1:
        share = format_share(found.combined_gain / ledger.gpu_seconds)
        notes.append(f"all remedies together: {share} of the window; no second is counted twice")
    whole = Table(
        title=f"{len(rows)} finding{'s' if len(rows) > 1 else ''}, dearest first",
        columns=columns(
            "rule",
            "account",
            "share",
            "USD/h",
            "sure",
            "finding",
            right="share,USD/h,sure",
            wrap="finding",
        ),
        rows=tuple(rows),
        notes=tuple(notes),
    )
    return [whole, *(_details(finding) for finding in found.findings)]


def _looked(found: Diagnosis) -> int:
    from computeflow.diagnosis.rules import RULES

    return sum(rule.trace is not None for rule in RULES) - len(found.abstained)


def _row(finding: Finding, ledger: Ledger, price: float | None) -> tuple[str, ...]:
    usd = finding_usd_per_hour(finding, ledger, price)
    return (
        finding.rule,
        finding.account,
        format_share(finding.gpu_seconds / ledger.gpu_seconds),
        "-" if usd is None else f"{usd:,.2f}",
        f"{finding.confidence:.2f}",
        finding.title,
    )


def _details(finding: Finding) -> Table:
    rows = [("evidence", evidence_text(one)) for one in finding.evidence]
    remedy = finding.remedy
    if remedy is not None:
        rows.append(("remedy", remedy.change))
        if remedy.command:
            rows.append(("", remedy.command))
        if remedy.gain_gpu_seconds is not None:
            rows.append(("gain", _gain(remedy.gain_low, remedy.gain_gpu_seconds, remedy.gain_high)))
        if remedy.risk:
            rows.append(("mind", remedy.risk))
    return Table(
        title=finding.rule,
        columns=columns("", "what", wrap="what"),
        rows=tuple(rows),
    )


def _gain(low: float | None, middle: float, high: float | None) -> str:
    text = f"{format_seconds(middle)} of GPU time in the window"
    if low is None or high is None or low == high:
        return text
    return f"{text}, between {format_seconds(low)} and {format_seconds(high)}"


def abstained_table(found: Diagnosis) -> Table:
    """Rules by the signal they lack."""
    by_signal: dict[str, list[str]] = {}
    for one in found.abstained:
        by_signal.setdefault(one.missing, []).append(one.rule)
    rows: Sequence[tuple[str, str]] = [(", ".join(rules), s) for s, rules in by_signal.items()]
    return Table(
        title="Rules that could not look",
        columns=columns("rule", "needs", wrap="rule,needs"),
        rows=tuple(rows),
    )
