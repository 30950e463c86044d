"""A whole audit in a terminal: the ledger first, then findings, then what each source says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from computeflow.views.audits import audit_tables, energy_table, hta_table
from computeflow.views.findings import abstained_table, finding_tables
from computeflow.views.ledgers import finding_table, gap_table
from computeflow.views.observed import observed_tables, together_table
from computeflow.views.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from computeflow.auditing.prices import PricedBy
    from computeflow.auditing.recordings import Recordings
    from computeflow.auditing.report import AuditReport
    from computeflow.diagnosis import Diagnosis
    from computeflow.telemetry.traces.job import TracedJob


def report_tables(report: AuditReport, *, details: bool) -> list[Table]:
    usd = None if report.price is None else report.price.usd
    tables: list[Table] = []
    if report.traces is not None and report.diagnosis is not None:
        ledger, *rest = _trace_tables(report.traces, report.request.trace.window, details)
        note = [report.baseline_note] if report.baseline_note else []
        diagnosis = _diagnosis_tables(report.diagnosis, report.traces, report.price)
        tables = [_noted(ledger, note), *diagnosis, *rest]
    tables += _source_tables(report.recordings, usd)
    if report.blame is not None:
        from computeflow.views.observed.accounting import blame_table

        tables.append(blame_table(report.blame))
    tables += _source_findings(report.recordings, usd)
    if report.recordings.left_out and tables:
        left_out = [f"left out: {text}" for text in report.recordings.left_out]
        tables[-1] = _noted(tables[-1], left_out)
    if report.compared is not None:
        tables.append(gap_table(report.compared.lines, report.compared.at))
    if report.energy is not None:
        tables.append(energy_table(report.energy))
    return tables


def _trace_tables(traces: TracedJob, window: str, details: bool) -> list[Table]:
    tables = audit_tables(traces, details=details)
    return [*tables, hta_table(traces.ranks)] if window == "hta" else tables


def _diagnosis_tables(found: Diagnosis, traces: TracedJob, price: PricedBy | None) -> list[Table]:
    tables = finding_tables(found, traces.job.ledger, None if price is None else price.usd)
    if price is not None and price.note and found.findings:
        tables[0] = _noted(tables[0], [price.note])
    return [*tables, abstained_table(found)] if found.abstained else tables


def _source_tables(recordings: Recordings, usd: float | None) -> list[Table]:
    tables = [table for each in recordings.observed for table in observed_tables(each, usd)]
    correlated = recordings.correlated
    return [*tables, together_table(correlated)] if correlated else tables


def _source_findings(recordings: Recordings, usd: float | None) -> list[Table]:
    findings = [
        (finding, each.ledger)
        for each, found in zip(recordings.observed, recordings.diagnoses, strict=True)
        for finding in found.findings
    ]
    return [finding_table(findings, usd)] if findings else []


def _noted(table: Table, notes: Sequence[str]) -> Table:
    return replace(table, notes=(*table.notes, *notes))
