"""Tables of each kind of source that is no trace: `observed_tables`."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from computeflow.views.ledgers import ledger_table
from computeflow.views.tables import Table, columns, left_out_notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from computeflow.telemetry.correlation import CorrelatedEvents
    from computeflow.telemetry.source_reports import SourceReport

__all__ = ["correlation_table", "observed_headline", "observed_tables"]

_MODULES = {
    "accounting": "accounting",
    "fleet": "fleet",
    "flight-recorder": "flight_recorder",
    "gpu-burn": "kernel_logs",
    "kernel-log": "kernel_logs",
    "log": "logs",
    "memory": "memory",
    "metrics": "metrics",
    "op-timeline": "op_timelines",
    "outages": "outages",
    "recording": "recordings",
}
_PRICED = ("accounting",)
_MAX_ROWS = 12


def observed_tables(
    observed: SourceReport, price: float | None = None, *, joined: bool = False
) -> list[Table]:
    """The source's ledger, then the tables of its kind; skipped input is noted under the last one.

    `price`: dollars per GPU-hour, for kinds whose tables show costs. `joined`: its ledger is shown
    elsewhere, and not here.
    """
    module = import_module(f"computeflow.views.sources.{_MODULES[observed.kind]}")
    priced = {"price": price} if observed.kind in _PRICED else {}
    tables: list[Table] = module.tables(observed, **priced)
    if observed.ledger is not None and not joined:
        tables.insert(0, ledger_table(observed.ledger))
    notes = [*observed.notes, *left_out_notes(observed.left_out)]
    if tables and notes:
        fresh = [note for note in notes if not any(note in table.notes for table in tables)]
        tables[-1] = replace(tables[-1], notes=(*tables[-1].notes, *fresh))
    return tables


def observed_headline(observed: SourceReport) -> str:
    """What the source shows, in a sentence."""
    module = import_module(f"computeflow.views.sources.{_MODULES[observed.kind]}")
    text: str = module.headline(observed)
    return text


def correlation_table(groups: Sequence[CorrelatedEvents]) -> Table:
    """Events that several sources reported around the same time; the same again is counted."""
    alike: dict[tuple[tuple[str, str, str], ...], list[CorrelatedEvents]] = {}
    for group in groups:
        said = dict.fromkeys((kind, event.node, event.what) for kind, event in group.parts)
        alike.setdefault(tuple(said), []).append(group)
    ordered = sorted(alike.items(), key=lambda item: -len(item[1]))
    rows = []
    for key, same in ordered[:_MAX_ROWS]:
        for place, (kind, node, what) in enumerate(key[:_MAX_ROWS]):
            parts = [
                (group, event)
                for group in same
                for source, event in group.parts
                if (source, event.node, event.what) == (kind, node, what)
            ]
            first, event = parts[0]
            later = (event.seconds or first.start) - first.start
            jobs = {event.job for _, event in parts if event.job}
            rows.append(
                (
                    f"{len(same):,}" if place == 0 else "",
                    f"+{later:,.0f} s",
                    kind,
                    node or "-",
                    what + (f", {len(parts):,} times" if len(parts) > len(same) else ""),
                    next(iter(jobs), "-") if len(jobs) < 2 else f"{len(jobs):,} jobs",
                )
            )
    hidden = len(ordered) - _MAX_ROWS
    return Table(
        title="What several sources saw within ten minutes of each other",
        columns=columns(
            "times", "after", "source", "node", "what", "job", right="times,after", wrap="what"
        ),
        rows=tuple(rows),
        notes=(f"{hidden:,} more kinds: -o json has all",) if hidden > 0 else (),
    )
