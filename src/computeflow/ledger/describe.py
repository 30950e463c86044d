"""A ledger in words and as a plain HTML table; the views build their tables from the same lines."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

from computeflow.ledger.accounts import ACCOUNTS
from computeflow.units import HOUR_SECONDS, format_seconds, format_share, format_si

if TYPE_CHECKING:
    from computeflow.ledger.book import Ledger


def title(ledger: Ledger) -> str:
    """Window, ranks, time and basis; the MFU by both conventions and of which peak."""
    seen = f"{ledger.gpus:,} GPU{'s' if ledger.gpus > 1 else ''}"
    if ledger.gpus_total not in (None, ledger.gpus):
        seen = f"{ledger.gpus:,} of {ledger.gpus_total:,} ranks"
    return (
        f"{ledger.window.label}: {seen}, {format_seconds(ledger.wall_seconds)}, {ledger.basis}; "
        f"{mfu_text(ledger)}"
    )


def mfu_text(ledger: Ledger) -> str:
    if ledger.mfu is None:
        return "MFU unavailable"
    palm = "unavailable" if ledger.mfu_palm is None else format_share(ledger.mfu_palm)
    peak = ""
    if ledger.peak is not None:
        peak = f" of {format_si(ledger.peak.flops, 'FLOP/s')} dense {ledger.peak.precision}"
    return f"MFU {format_share(ledger.mfu)}{peak} (PaLM convention: {palm})"


def lines(ledger: Ledger) -> list[tuple[str, str, float, float]]:
    """Account, owner, GPU-seconds and share; the total last."""
    total = ledger.gpu_seconds
    booked = [
        (name, str(ACCOUNTS[name].owner), s, s / total) for name, s in ledger.accounts.items()
    ]
    return [*booked, ("total", "", total, 1.0)]


def notes(ledger: Ledger) -> list[str]:
    energy = [] if ledger.joules is None else [f"energy: {format_si(ledger.joules, 'J')}"]
    return energy + unavailable_notes(ledger.unavailable)


def unavailable_notes(needs: Mapping[str, str]) -> list[str]:
    """One note on all that a signal is missing for; `needs`: name to signal. Empty: no note."""
    by_signal: dict[str, list[str]] = {}
    for name, signal in needs.items():
        by_signal.setdefault(signal, []).append(name)
    parts = (f"{', '.join(names)} (needs {signal})" for signal, names in by_signal.items())
    return [f"Unavailable: {'; '.join(parts)}"] if needs else []


def time_unit(total_gpu_seconds: float) -> tuple[str, float]:
    """GPU-milliseconds for a step of one GPU, GPU-hours for a run, GPU-seconds between."""
    if total_gpu_seconds < 10:
        return "GPU-ms", 1e-3
    return ("GPU-h", HOUR_SECONDS) if total_gpu_seconds > 1e6 else ("GPU-s", 1.0)


def html(ledger: Ledger) -> str:
    """One plain table for a notebook cell: no style sheet, no script."""
    unit, size = time_unit(ledger.gpu_seconds)
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{owner}</td>"
        f'<td style="text-align:right">{seconds / size:,.1f}</td>'
        f'<td style="text-align:right">{format_share(share)}</td></tr>'
        for name, owner, seconds, share in lines(ledger)
    )
    remarks = "".join(f"<p>{escape(note)}</p>" for note in notes(ledger))
    return (
        f"<table><caption>{escape(title(ledger))}</caption>"
        f"<tr><th>account</th><th>owner</th><th>{unit}</th><th>share</th></tr>{rows}</table>{remarks}"
    )
