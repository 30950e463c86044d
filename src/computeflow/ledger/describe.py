"""A ledger in words and as a plain HTML table; the views build their tables from the same lines."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

from computeflow.ledger.accounts import ACCOUNTS
from computeflow.units import HOUR_SECONDS, format_count, format_seconds, format_share, format_si

if TYPE_CHECKING:
    from computeflow.ledger.book import Ledger


def title(ledger: Ledger) -> str:
    """Window, ranks, time and basis; the MFU by both conventions and of which peak."""
    return (
        f"{ledger.window.label}: {ranks_text(ledger)}, {format_seconds(ledger.wall_seconds)}, "
        f"{ledger.basis}; {mfu_text(ledger)}"
    )


def ranks_text(ledger: Ledger) -> str:
    """`8 GPUs`, `8 of 64 ranks`, or `2 ranks on the CPU`."""
    seen = format_count(ledger.gpus, "rank" if ledger.on_host else "GPU")
    if ledger.gpus_total not in (None, ledger.gpus):
        seen = f"{ledger.gpus:,} of {ledger.gpus_total:,} ranks"
    return f"{seen} on the CPU" if ledger.on_host else seen


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
    """The energy; accounts that a signal is missing for: for part of them, or for all."""
    energy = [] if ledger.joules is None else [f"energy: {format_si(ledger.joules, 'J')}"]
    booked, needs = ledger.accounts, ledger.unavailable
    part = {name: signal for name, signal in needs.items() if booked.get(name)}
    rest = {name: signal for name, signal in needs.items() if name not in part}
    return energy + unavailable_notes(part, "In part unavailable") + unavailable_notes(rest)


def unavailable_notes(needs: Mapping[str, str], head: str = "Unavailable") -> list[str]:
    """One note on all that a signal is missing for; `needs`: name to signal. Empty: no note."""
    by_signal: dict[str, list[str]] = {}
    for name, signal in needs.items():
        by_signal.setdefault(signal, []).append(name)
    parts = (f"{', '.join(names)} (needs {signal})" for signal, names in by_signal.items())
    return [f"{head}: {'; '.join(parts)}"] if needs else []


def time_unit(total_gpu_seconds: float, *, on_host: bool = False) -> tuple[str, float]:
    """GPU-milliseconds for a step of one GPU, GPU-hours for a run, GPU-seconds between; plain ones
    where the host computed.
    """
    unit, size = ("GPU-h", HOUR_SECONDS) if total_gpu_seconds > 1e6 else ("GPU-s", 1.0)
    if total_gpu_seconds < 10:
        unit, size = "GPU-ms", 1e-3
    return unit.removeprefix("GPU-") if on_host else unit, size


def ledger_unit(*ledgers: Ledger) -> tuple[str, float]:
    """The unit of time in which the largest of these ledgers reads well."""
    on_host = all(ledger.on_host for ledger in ledgers)
    return time_unit(max(ledger.gpu_seconds for ledger in ledgers), on_host=on_host)


def html(ledger: Ledger) -> str:
    """One plain table for a notebook cell: no style sheet, no script."""
    unit, size = ledger_unit(ledger)
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
