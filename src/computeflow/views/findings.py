"""A diagnosis as tables: findings, their evidence and remedies, and skipped rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from computeflow.economics import finding_usd_per_hour
from computeflow.ledger import Finding, Ledger
from computeflow.units import format_share
from computeflow.views.cards import evidence_text
from computeflow.views.gains import GainText
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.diagnosis.diagnosis import Diagnosis


def finding_tables(
    diagnosis: Diagnosis, ledger: Ledger, price: float | None, step_seconds: float | None = None
) -> list[Table]:
    """One table of all findings, then one table for each. `step_seconds`: the recorded step."""
    if not diagnosis.findings:
        text = "nothing to change"
        return [
            Table(
                title="No findings",
                columns=columns("rules checked", "result", wrap="result"),
                rows=((str(_looked(diagnosis)), text),),
                notes=diagnosis.notes,
            )
        ]
    gain = GainText(
        ledger=ledger,
        step_seconds=diagnosis.step_seconds(step_seconds),
        replayed=diagnosis.as_it_runs is not None,
    )
    priced = price is not None or any(f.usd_per_hour is not None for f in diagnosis.findings)
    notes = list(diagnosis.notes)
    if diagnosis.combined_gain is not None and len(diagnosis.findings) > 1:
        share = format_share(diagnosis.combined_gain / ledger.gpu_seconds)
        whole = "window" if diagnosis.as_it_runs is None else "time"
        each = gain.step(diagnosis.combined_gain)
        notes.append(
            f"all remedies together win back {share} of the {whole}{each}; overlaps count once"
        )
    names = ("rule", "account", "share", *(("$/h",) if priced else ()), "confidence", "finding")
    count = len(diagnosis.findings)
    overview = Table(
        title=f"{count} finding{'s, most expensive first' if count > 1 else ''}",
        columns=columns(*names, right="share,$/h,confidence", wrap="finding"),
        rows=tuple(_row(finding, ledger, price, priced=priced) for finding in diagnosis.findings),
        notes=tuple(notes),
    )
    return [overview, *(_details(finding, gain) for finding in diagnosis.findings)]


def _looked(diagnosis: Diagnosis) -> int:
    from computeflow.diagnosis.rule import TRACE
    from computeflow.diagnosis.rules import RULES

    return sum(TRACE in rule.kinds for rule in RULES) - len(
        {skipped.rule for skipped in diagnosis.abstained}
    )


def _row(finding: Finding, ledger: Ledger, price: float | None, *, priced: bool) -> tuple[str, ...]:
    usd = finding_usd_per_hour(finding, ledger, price)
    cost = "-" if usd is None else f"{usd:,.2f}"
    return (
        finding.rule,
        finding.account,
        format_share(finding.gpu_seconds / ledger.gpu_seconds),
        *((cost,) if priced else ()),
        f"{finding.confidence:.2f}",
        finding.title,
    )


def _details(finding: Finding, gain: GainText) -> Table:
    rows = [("evidence", evidence_text(evidence)) for evidence in finding.evidence]
    remedy = finding.remedy
    if remedy is not None:
        rows.append(("remedy", remedy.change))
        if remedy.command:
            rows.append(("", remedy.command))
        if remedy.gain_gpu_seconds is not None:
            rows.append(
                ("gain", gain.text(remedy.gain_gpu_seconds, remedy.gain_low, remedy.gain_high))
            )
        if remedy.risk:
            rows.append(("risk", remedy.risk))
    return Table(
        title=f"{finding.rule}: evidence and remedy",
        columns=columns("", "detail", wrap="detail"),
        rows=tuple(rows),
    )


def skipped_rules_table(diagnosis: Diagnosis) -> Table:
    """Skipped rules, grouped by the signal they need."""
    by_signal: dict[str, list[str]] = {}
    for skipped in diagnosis.abstained:
        by_signal.setdefault(skipped.missing, []).append(skipped.rule)
    rows = [(", ".join(rules), signal) for signal, rules in by_signal.items()]
    return Table(
        title="Skipped rules: missing signal",
        columns=columns("rule", "missing signal", wrap="rule,missing signal"),
        rows=tuple(rows),
    )
