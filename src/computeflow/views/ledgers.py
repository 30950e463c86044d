"""Ledgers and gaps as tables."""

from __future__ import annotations

import math

from computeflow.ledger import ACCOUNTS, Finding, Gap, Ledger
from computeflow.units import format_seconds, format_share, format_si
from computeflow.views.tables import Table, columns

_BAR = 20


def ledger_table(ledger: Ledger) -> Table:
    total = ledger.gpu_seconds
    unit, size = _time_unit(total)
    rows = [
        (
            name,
            str(ACCOUNTS[name].owner),
            f"{seconds / size:,.1f}",
            format_share(seconds / total),
            _bar(seconds / total),
        )
        for name, seconds in ledger.accounts.items()
    ]
    rows.append(("total", "", f"{total / size:,.1f}", format_share(1.0), ""))
    return Table(
        title=ledger_title(ledger),
        columns=columns("account", "owner", unit, "share", "", right=f"{unit},share"),
        rows=tuple(rows),
        notes=(
            *([] if ledger.joules is None else [f"energy: {format_si(ledger.joules, 'J')}"]),
            *(f"{name}: unavailable, needs {what}" for name, what in ledger.unavailable.items()),
        ),
        strong=frozenset({len(rows) - 1}),
    )


def ledger_title(ledger: Ledger) -> str:
    seen = f"{ledger.gpus:,} GPUs"
    if ledger.gpus_total not in (None, ledger.gpus):
        seen = f"{ledger.gpus:,} of {ledger.gpus_total:,} ranks"
    mfu = "unavailable" if ledger.mfu is None else format_share(ledger.mfu)
    return (
        f"{ledger.window.label}: {seen}, {format_seconds(ledger.wall_seconds)}, "
        f"{ledger.basis}, MFU {mfu}"
    )


def gap_table(lines: list[Gap]) -> Table:
    """Measured against expected, at equal model FLOPs; largest loss first."""
    ordered = sorted(lines, key=lambda line: -line.gpu_seconds)
    measured = math.fsum(line.measured for line in lines)
    expected = math.fsum(line.expected for line in lines)
    unit, size = _time_unit(measured)
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
        title=f"Measured against expected, {unit} at equal model FLOPs",
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


def _time_unit(total_gpu_seconds: float) -> tuple[str, float]:
    """GPU-seconds for a few steps, GPU-hours for a run."""
    return ("GPU-h", 3600.0) if total_gpu_seconds > 1e6 else ("GPU-s", 1.0)


def _bar(share: float) -> str:
    return "#" * round(share * _BAR)


def _signed_share(share: float) -> str:
    return f"{100 * share:+.1f} %"
