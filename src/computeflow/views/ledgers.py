"""Ledgers and gaps as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from computeflow.economics import finding_usd_per_hour
from computeflow.ledger import ACCOUNTS, Finding, Gap, Ledger, describe
from computeflow.units import format_share
from computeflow.views.tables import Table, columns

_BAR = 20


def ledger_table(ledger: Ledger, *, bars: bool = True) -> Table:
    unit, size = describe.time_unit(ledger.gpu_seconds)
    found = describe.lines(ledger)
    shown = 5 if bars else 4
    return Table(
        title=describe.title(ledger),
        columns=columns("account", "owner", unit, "share", "", right=f"{unit},share")[:shown],
        rows=tuple(
            (name, owner, f"{s / size:,.1f}", format_share(share), _bar(share) if owner else "")[
                :shown
            ]
            for name, owner, s, share in found
        ),
        notes=tuple(describe.notes(ledger)),
        strong=frozenset({len(found) - 1}),
    )


def ledgers_table(one: Ledger, other: Ledger) -> Table:
    """Two ledgers as they are, account by account; `gap_table` compares them at equal work."""
    unit, size = describe.time_unit(max(one.gpu_seconds, other.gpu_seconds))
    booked = (one.accounts, other.accounts)
    rows = [
        (name, account.owner, *(_cell(part.get(name), size) for part in booked))
        for name, account in ACCOUNTS.items()
        if any(name in part for part in booked)
    ]
    rows.append(("total", "", _cell(one.gpu_seconds, size), _cell(other.gpu_seconds, size)))
    return Table(
        title=f"Two ledgers ({unit}): {describe.title(one)}; {describe.title(other)}",
        columns=columns("account", "owner", "first", "second", right="first,second"),
        rows=tuple(rows),
        notes=tuple(
            f"{n}: {note}"
            for n, part in (("first", one), ("second", other))
            for note in describe.notes(part)
        ),
        strong=frozenset({len(rows) - 1}),
    )


def gap_table(lines: Sequence[Gap], at: str = "equal model FLOPs") -> Table:
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
            "account",
            "measured",
            "expected",
            "gap",
            "of measured",
            right="measured,expected,gap,of measured",
            wrap="account",
        ),
        rows=tuple(rows),
        strong=frozenset({len(rows) - 1}),
    )


def finding_table(findings: Sequence[tuple[Finding, Ledger | None]], usd: float | None) -> Table:
    """Findings with the ledger that each is of; `usd`: dollars for a GPU-hour."""
    ordered = sorted(findings, key=lambda pair: -pair[0].gpu_seconds)
    priced = ("USD/h",) if usd is not None else ()
    return Table(
        title=_counted(len(findings)),
        columns=columns(
            "rule",
            "account",
            "share",
            *priced,
            "finding",
            "remedy",
            right="share,USD/h",
            wrap="finding,remedy",
        ),
        rows=tuple(
            (
                finding.rule,
                finding.account,
                "-" if ledger is None else format_share(finding.gpu_seconds / ledger.gpu_seconds),
                *(_hourly(finding, ledger, usd) for _ in priced),
                finding.title,
                finding.remedy.change if finding.remedy else "-",
            )
            for finding, ledger in ordered
        ),
    )


def _hourly(finding: Finding, ledger: Ledger | None, usd: float | None) -> str:
    cost = finding_usd_per_hour(finding, ledger, usd)
    return "-" if cost is None else f"{cost:,.2f}"


def _counted(findings: int) -> str:
    return "No findings" if not findings else f"{findings} finding{'s' if findings > 1 else ''}"


def _cell(seconds: float | None, size: float) -> str:
    return "-" if seconds is None else f"{seconds / size:,.1f}"


def _bar(share: float) -> str:
    return "#" * round(share * _BAR)


def _signed_share(share: float) -> str:
    return f"{100 * share:+.1f} %"
