"""Ledgers and gaps as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from computeflow.economics import finding_usd_per_hour
from computeflow.ledger import ACCOUNTS, Finding, Gap, Ledger, describe
from computeflow.units import format_share
from computeflow.views.tables import Table, columns

_BAR = 20
_SHORT_BAR = 10
"""Beside a second ledger: all columns of the longest account fit into 80."""
_NO_LOSS = ("useful", "mixed")
"""Owners whose time trains the model, in whole or in part."""


def ledger_headline(ledger: Ledger, lines: Sequence[Gap] = ()) -> str:
    """The MFU and the largest loss; with `lines`, how far the ledger is from the expected one."""
    sentences = [] if ledger.mfu is None else [f"MFU {format_share(ledger.mfu)}."]
    expected = math.fsum(line.expected for line in lines)
    if lines and expected:
        change = math.fsum(line.measured for line in lines) / expected - 1
        most = max(lines, key=lambda line: line.gpu_seconds)
        more = "more" if change >= 0 else "less"
        time = "time" if ledger.on_host else "GPU time"
        sentences.insert(0, f"{format_share(abs(change))} {more} {time} than expected.")
        if most.gpu_seconds > 0:
            share = format_share(most.gpu_seconds / expected)
            sentences.append(f"Largest gap: {most.label}, {share} of the expected time.")
        return " ".join(sentences)
    losses = {
        n: s for n, s in ledger.accounts.items() if ACCOUNTS[n].owner not in _NO_LOSS and s > 0
    }
    if losses:
        name = max(losses, key=lambda name: losses[name])
        share = format_share(losses[name] / ledger.gpu_seconds)
        sentences.append(f"Largest loss: {name}, {share} of {_total(ledger)}.")
    return " ".join(sentences)


def _total(ledger: Ledger) -> str:
    unit, size = describe.ledger_unit(ledger)
    return f"{ledger.gpu_seconds / size:,.1f} {unit}"


def ledger_table(ledger: Ledger, *, bars: bool = True) -> Table:
    unit, size = describe.ledger_unit(ledger)
    lines = describe.lines(ledger)
    shown = 5 if bars else 4
    return Table(
        title=describe.title(ledger),
        columns=columns("account", "owner", unit, "share", "", right=f"{unit},share")[:shown],
        rows=tuple(
            (name, owner, f"{s / size:,.1f}", format_share(share), _bar(share) if owner else "")[
                :shown
            ]
            for name, owner, s, share in lines
        ),
        notes=tuple(describe.notes(ledger)),
        strong=frozenset({len(lines) - 1}),
    )


def replayed_ledger_table(
    recorded: Ledger, as_it_runs: Ledger, notes: Sequence[str] = (), *, bars: bool = True
) -> Table:
    """A recorded ledger beside the same window without the profiler, which has the bars."""
    unit, size = describe.ledger_unit(recorded, as_it_runs)
    booked, running = recorded.accounts, as_it_runs.accounts
    rows: list[tuple[str, ...]] = [
        (
            name,
            str(account.owner),
            *_timed(booked.get(name, 0.0), recorded, size),
            *_timed(running.get(name, 0.0), as_it_runs, size),
            _bar(running.get(name, 0.0) / as_it_runs.gpu_seconds, _SHORT_BAR),
        )
        for name, account in ACCOUNTS.items()
        if name in booked or name in running
    ]
    totals = (_timed(each.gpu_seconds, each, size) for each in (recorded, as_it_runs))
    rows.append(("total", "", *(cell for pair in totals for cell in pair), ""))
    heads = columns(
        "account",
        "owner",
        unit,
        "share",
        "as it runs",
        "share",
        "",
        right=f"{unit},share,as it runs",
    )
    shown = len(heads) if bars else len(heads) - 1
    return Table(
        title=describe.title(recorded),
        columns=heads[:shown],
        rows=tuple(row[:shown] for row in rows),
        notes=(*notes, *describe.notes(recorded)),
        strong=frozenset({len(rows) - 1}),
    )


def ledgers_table(one: Ledger, other: Ledger) -> Table:
    """Two ledgers side by side, account by account; `gap_table` compares them at equal work."""
    unit, size = describe.ledger_unit(one, other)
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
            f"{which}: {note}"
            for which, part in (("First", one), ("Second", other))
            for note in describe.notes(part)
        ),
        strong=frozenset({len(rows) - 1}),
    )


def gap_table(
    lines: Sequence[Gap], at: str = "equal model FLOPs", *, on_host: bool = False
) -> Table:
    """Measured against expected, largest loss first."""
    ordered = sorted(lines, key=lambda line: -line.gpu_seconds)
    measured = math.fsum(line.measured for line in lines)
    expected = math.fsum(line.expected for line in lines)
    unit, size = describe.time_unit(measured, on_host=on_host)
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
    """Findings of several sources, each with its source's ledger; `usd`: dollars for a GPU-hour."""
    ordered = sorted(findings, key=lambda pair: -pair[0].gpu_seconds)
    priced = ("$/h",) if usd is not None else ()
    return Table(
        title=f"{len(findings)} finding{'s, most expensive first' if len(findings) > 1 else ''}",
        columns=columns(
            "rule",
            "account",
            "share",
            *priced,
            "finding",
            "remedy",
            right="share,$/h",
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


def _timed(seconds: float, ledger: Ledger, size: float) -> tuple[str, str]:
    return f"{seconds / size:,.1f}", format_share(seconds / ledger.gpu_seconds)


def _cell(seconds: float | None, size: float) -> str:
    return "-" if seconds is None else f"{seconds / size:,.1f}"


def _bar(share: float, length: int = _BAR) -> str:
    return "#" * round(share * length)


def _signed_share(share: float) -> str:
    return f"{100 * share:+.1f} %"
