"""Ledgers and gaps as tables."""

from __future__ import annotations

import math

from computeflow.ledger import Finding, Gap, Ledger, describe
from computeflow.units import format_share
from computeflow.views.tables import Table, columns

_BAR = 20


def ledger_table(ledger: Ledger) -> Table:
    unit, size = describe.time_unit(ledger.gpu_seconds)
    found = describe.lines(ledger)
    return Table(
        title=describe.title(ledger),
        columns=columns("account", "owner", unit, "share", "", right=f"{unit},share"),
        rows=tuple(
            (name, owner, f"{s / size:,.1f}", format_share(share), "" if not owner else _bar(share))
            for name, owner, s, share in found
        ),
        notes=tuple(describe.notes(ledger)),
        strong=frozenset({len(found) - 1}),
    )


def gap_table(lines: list[Gap], at: str = "equal model FLOPs") -> Table:
    """Measured against expected; largest loss first."""
    ordered = sorted(lines, key=lambda line: -line.gpu_seconds)
    measured = math.fsum(line.measured for line in lines)
    expected = math.fsum(line.expected for line in lines)
    unit, size = describe.time_unit(measured)
    rows = [
        (
            line.label,
            f"{line.measured / size:,.1f}",
            f"{line.expected / size:,.1f}",
            f"{line.gpu_seconds / size:+,.1f}",
            _signed_share(line.gpu_seconds / measured),
        )
        for line in ordered
    ]
    rows.append(
        (
            "total",
            f"{measured / size:,.1f}",
            f"{expected / size:,.1f}",
            f"{(measured - expected) / size:+,.1f}",
            _signed_share((measured - expected) / measured),
        )
    )
    return Table(
        title=f"Measured against expected, {unit} at {at}",
        columns=columns(
            "account", "measured", "expected", "gap", "of measured",
            right="measured,expected,gap,of measured", wrap="account",
        ),
        rows=tuple(rows),
        strong=frozenset({len(rows) - 1}),
    )  # fmt: skip


def finding_table(findings: list[Finding], total_gpu_seconds: float) -> Table:
    ordered = sorted(findings, key=lambda finding: -finding.gpu_seconds)
    return Table(
        title=f"{len(findings)} findings" if findings else "No findings",
        columns=columns(
            "rule", "account", "share", "finding", "remedy", right="share", wrap="finding,remedy"
        ),
        rows=tuple(
            (
                finding.rule,
                finding.account,
                format_share(finding.gpu_seconds / total_gpu_seconds),
                finding.title,
                finding.remedy.change if finding.remedy else "-",
            )
            for finding in ordered
        ),
    )


def _bar(share: float) -> str:
    return "#" * round(share * _BAR)


def _signed_share(share: float) -> str:
    return f"{100 * share:+.1f} %"
