"""A ledger in a notebook cell: one plain table, no style sheet, no script."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from computeflow.ledger.accounts import ACCOUNTS
from computeflow.units import format_seconds, format_share

if TYPE_CHECKING:
    from computeflow.ledger.book import Ledger


def html(ledger: Ledger) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{ACCOUNTS[name].owner}</td>"
        f'<td style="text-align:right">{seconds:,.1f}</td>'
        f'<td style="text-align:right">{format_share(seconds / ledger.gpu_seconds)}</td></tr>'
        for name, seconds in ledger.accounts.items()
    )
    missing = "".join(
        f"<li>{escape(name)}: needs {escape(signal)}</li>"
        for name, signal in ledger.unavailable.items()
    )
    return (
        f"<table><caption>{escape(ledger.window.label)}: {ledger.gpus:,} GPUs, "
        f"{format_seconds(ledger.wall_seconds)}, {ledger.basis}, MFU {format_share(ledger.mfu)}"
        "</caption><tr><th>account</th><th>owner</th><th>GPU-seconds</th><th>share</th></tr>"
        f"{rows}</table>" + (f"<p>unavailable:</p><ul>{missing}</ul>" if missing else "")
    )
