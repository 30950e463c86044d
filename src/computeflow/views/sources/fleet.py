"""A fleet as tables: findings with their remedies, the ledger they add up to, and its idle time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from computeflow.economics import usd_of
from computeflow.ledger import Ledger, describe
from computeflow.ledger.findings import balance
from computeflow.telemetry.fleet.fleet_facts import FleetFacts
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import format_count, format_seconds, format_share
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from computeflow.diagnosis import Diagnosis
    from computeflow.ledger import Finding

_WHY_IDLE = {
    "spread": "jobs waited: enough GPUs were free, spread over too many nodes",
    "held": "jobs waited: nodes were free, a priority, limit or reservation held them",
    "short": "jobs waited: fewer were free than the smallest asks for",
    "unplaced": "jobs waited: on which nodes GPUs were free is unknown",
}
MAX_FINDINGS = 12


def fleet_tables(observed: SourceReport, found: Diagnosis, usd: float | None) -> list[Table]:
    """Findings first, then what they add up to, then idle time by cause."""
    return [*ranked_tables(observed, found, usd), *tables(observed)]


def ranked_tables(observed: SourceReport, found: Diagnosis, usd: float | None) -> list[Table]:
    """Findings, and what they add up to."""
    ledger = observed.ledger
    assert ledger is not None
    findings = [findings_table(found.findings, ledger, usd)] if found.findings else []
    return [*findings, balance_table(found.findings, ledger, usd, observed.notes)]


def findings_table(findings: Sequence[Finding], ledger: Ledger, usd: float | None) -> Table:
    """Each finding with its command beneath, most expensive first."""
    unit, size = _unit(ledger, usd)
    shown = sorted(findings, key=lambda finding: -finding.gpu_seconds)[:MAX_FINDINGS]
    rows: list[tuple[str, ...]] = []
    for finding in shown:
        rows.append(
            (
                finding.rule,
                f"{finding.gpu_seconds / size:,.2f}",
                format_share(finding.gpu_seconds / ledger.gpu_seconds),
                f"{finding.confidence:.2f}",
                finding.title,
            )
        )
        remedy = finding.remedy
        if remedy is not None:
            rows.append(("", "", "", "", f"> {remedy.command or remedy.change}"))
    claimed = math.fsum(finding.gpu_seconds for finding in findings)
    more = len(findings) - len(shown)
    many = f"{len(findings)} finding{'s, most expensive first' if len(findings) > 1 else ''}"
    part, whole = f"{claimed / size:,.2f}", f"{ledger.gpu_seconds / size:,.2f}"
    total = f"${part} of ${whole}" if usd else f"{part} of {whole} {unit}"
    return Table(
        title=f"{many}: {total} in {format_seconds(ledger.wall_seconds)}",
        columns=columns(
            "rule",
            unit,
            "share",
            "conf.",
            "finding and remedy",
            right=f"{unit},share,conf.",
            wrap="finding and remedy",
        ),
        rows=tuple(rows),
        notes=(f"{more:,} more: -o json has all",) if more > 0 else (),
    )


def balance_table(
    findings: Sequence[Finding], ledger: Ledger, usd: float | None, notes: Sequence[str]
) -> Table:
    """The ledger, what findings claim of each account, and the rest."""
    unit, size = _unit(ledger, usd)
    rows = [
        (
            row.account,
            f"{row.gpu_seconds / size:,.2f}",
            format_share(row.gpu_seconds / ledger.gpu_seconds),
            f"{row.claimed_gpu_seconds / size:,.2f}",
            f"{row.rest_gpu_seconds / size:,.2f}",
        )
        for row in balance(ledger, findings)
    ]
    claimed = math.fsum(finding.gpu_seconds for finding in findings)
    rows.append(
        (
            "total",
            f"{ledger.gpu_seconds / size:,.2f}",
            format_share(1.0),
            f"{claimed / size:,.2f}",
            f"{(ledger.gpu_seconds - claimed) / size:,.2f}",
        )
    )
    return Table(
        title=f"The fleet's ledger ({unit}): {describe.ranks_text(ledger)}, "
        f"{format_seconds(ledger.wall_seconds)}, measured; and what findings claim of it",
        columns=columns(
            "account", unit, "share", "in findings", "rest", right=f"{unit},share,in findings,rest"
        ),
        rows=tuple(rows),
        notes=(*describe.notes(ledger), *notes),
        strong=frozenset({len(rows) - 1}),
    )


def tables(observed: SourceReport) -> list[Table]:
    """Idle time of the fleet by cause."""
    facts: FleetFacts = observed.facts
    whole = facts.gpus * (facts.end - facts.start)
    unit, size = describe.time_unit(whole)
    queue = facts.queue
    parts = {
        "held by jobs, and nothing ran for ten minutes or more": facts.held_idle_gpu_seconds,
        **{_WHY_IDLE[reason]: seconds for reason, seconds in queue.wanted.items()},
        "nodes out of service": queue.out,
        "nobody waited for it": queue.unwanted,
    }
    rows = tuple(
        (why, f"{seconds / size:,.1f}", format_share(seconds / whole))
        for why, seconds in parts.items()
        if seconds > 0
    )
    made = Table(
        title="Idle GPUs, by cause",
        columns=columns("cause", unit, "share", right=f"{unit},share", wrap="cause"),
        rows=rows,
        notes=tuple(_notes(facts)),
    )
    return [made] if rows else []


def _notes(facts: FleetFacts) -> list[str]:
    notes = []
    if "metrics" not in facts.joined:
        notes.append("what GPUs did while jobs held them is unknown without metrics of their nodes")
    if facts.unsure_gpu_seconds:
        notes.append(
            "what failed attempts did again after a retry is not in lost where no log of the job shows "
            "it"
        )
    return notes


def headline(observed: SourceReport) -> str:
    facts: FleetFacts = observed.facts
    ledger = observed.ledger
    assert ledger is not None
    idle = format_share(ledger.booked("idle") / ledger.gpu_seconds)
    return (
        f"{facts.gpus:,} GPUs over {format_seconds(facts.end - facts.start)}: idle {idle}, lost "
        f"{format_share(ledger.booked('lost') / ledger.gpu_seconds)}, "
        f"{format_count(facts.queue.waited, 'job')} waited five minutes or longer."
    )


def _unit(ledger: Ledger, usd: float | None) -> tuple[str, float]:
    """Dollars where the price is known, else GPU time; and GPU-seconds in one."""
    return describe.ledger_unit(ledger) if not usd else ("$", 1.0 / usd_of(1.0, usd))
