"""A whole audit in a terminal: a hang, findings, then ledgers and sources, and skipped rules last."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from computeflow.telemetry.fleet.fleet_join import KIND as FLEET
from computeflow.telemetry.outages.outage_source import KIND as OUTAGES
from computeflow.views.audits import audit_tables, energy_table, hta_table
from computeflow.views.findings import finding_tables, skipped_rules_table
from computeflow.views.ledgers import finding_table, gap_table
from computeflow.views.sources import correlation_table, observed_tables
from computeflow.views.tables import Table, left_out_notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from computeflow.auditing.audit_report import AuditComparison, AuditReport
    from computeflow.auditing.recordings import Recordings
    from computeflow.diagnosis import Diagnosis
    from computeflow.economics import GpuPrice
    from computeflow.telemetry.source_reports import SourceReport
    from computeflow.telemetry.traces.job_ledgers import TracedJob


def report_tables(report: AuditReport, *, details: bool) -> list[Table]:
    usd = None if report.price is None else report.price.usd
    stopped = [*hang_tables(report.recordings, usd), *fleet_parts(report.recordings, usd)]
    tables, last = _source_findings(report.recordings, usd), []
    if report.traces is not None and report.diagnosis is not None:
        ledger, *rest = audit_tables(report.traces, details=details, diagnosis=report.diagnosis)
        if report.request.trace.window == "hta":
            rest.append(hta_table(report.traces.ranks))
        notes = [report.baseline_note] if report.baseline_note else []
        findings = _trace_findings(report.diagnosis, report.traces, report.price)
        tables = [*findings, *tables, _noted(ledger, notes), *rest]
        last = [skipped_rules_table(report.diagnosis)] if report.diagnosis.abstained else []
    tables += _source_tables(report.recordings, usd)
    if report.blame is not None:
        from computeflow.views.sources.accounting import attribution_table

        tables.append(attribution_table(report.blame))
    tables = stopped + tables
    if report.recordings.left_out and tables:
        tables[-1] = _noted(tables[-1], left_out_notes(report.recordings.left_out))
    if report.energy is not None:
        tables.append(energy_table(report.energy))
    compared = report.compared
    requested = [] if compared is None else [_gaps(report, compared)]
    return [*requested, *tables, *last]


def _gaps(report: AuditReport, compared: AuditComparison) -> Table:
    replayed = report.diagnosis is not None and report.diagnosis.as_it_runs is not None
    at = f"{compared.at}, as recorded" if replayed and not compared.earlier else compared.at
    return gap_table(compared.lines, at, on_host=report.recordings.ledger.on_host)


def _trace_findings(diagnosis: Diagnosis, traces: TracedJob, price: GpuPrice | None) -> list[Table]:
    usd = None if price is None else price.usd
    tables = finding_tables(diagnosis, traces.job.ledger, usd, traces.step_seconds)
    if price is not None and price.note and diagnosis.findings:
        tables[0] = _noted(tables[0], [price.note])
    return tables


def hang_tables(recordings: Recordings, usd: float | None) -> list[Table]:
    """What stopped the job, before all else: the finding and the ranks; nothing without a hang."""
    hung = [each for each, found in _observed(recordings) if _hangs(found)]
    findings = [
        (f, None) for _, found in _observed(recordings) if _hangs(found) for f in found.findings
    ]
    tables = [finding_table(findings, usd)] if findings else []
    return [*tables, *(table for each in hung for table in observed_tables(each, usd))]


def _source_tables(recordings: Recordings, usd: float | None) -> list[Table]:
    """Tables of the sources, but those of a hang, which stand first."""
    tables = [
        table
        for (each, found), joined in zip_longest(_observed(recordings), recordings.joined)
        if not _hangs(found) and each.kind != FLEET
        for table in observed_tables(each, usd, joined=bool(joined) or each.kind == OUTAGES)
    ]
    correlated = recordings.correlated
    return [*tables, correlation_table(correlated)] if correlated else tables


def _source_findings(recordings: Recordings, usd: float | None) -> list[Table]:
    findings = [
        (finding, each.ledger)
        for each, diagnosis in _observed(recordings)
        if not _hangs(diagnosis) and each.kind not in (FLEET, OUTAGES)
        for finding in diagnosis.findings
    ]
    return [finding_table(findings, usd)] if findings else []


def fleet_parts(recordings: Recordings, usd: float | None) -> list[Table]:
    """Findings and ledger of a fleet, which stand before all else; nothing without one."""
    from computeflow.views.sources.fleet import fleet_tables, ranked_tables

    parts = [each for each in _observed(recordings) if each[0].ledger is not None]
    fleets = [
        table for each in parts if each[0].kind == FLEET for table in fleet_tables(*each, usd)
    ]
    nodes = [
        table for each in parts if each[0].kind == OUTAGES for table in ranked_tables(*each, usd)
    ]
    return [*fleets, *nodes]


def _observed(recordings: Recordings) -> list[tuple[SourceReport, Diagnosis]]:
    return list(zip(recordings.observed, recordings.diagnoses, strict=True))


def _hangs(diagnosis: Diagnosis) -> bool:
    return any(finding.rule == "hang" for finding in diagnosis.findings)


def _noted(table: Table, notes: Sequence[str]) -> Table:
    return replace(table, notes=(*table.notes, *notes))
