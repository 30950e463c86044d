"""What each kind of source observed, as tables: `observed_tables`."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from computeflow.views.ledgers import ledger_table
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from computeflow.telemetry.joining import Together
    from computeflow.telemetry.observed import Observed

__all__ = ["observed_tables", "together_table"]

_MODULES = {
    "flight-recorder": "flight", "op-timeline": "whatif", "log": "logs", "metrics": "metrics",
    "accounting": "accounting", "kernel-log": "kernel",
    "gpu-burn": "kernel", "memory": "memory",
}  # fmt: skip
_PRICED = ("accounting",)
_MOST = 12


def observed_tables(observed: Observed, price: float | None = None) -> list[Table]:
    """Its ledger, then those of its kind; what it left out stands under the last one. `price`: dollars
    per GPU-hour, for kinds that have what to price.
    """
    module = import_module(f"computeflow.views.observed.{_MODULES[observed.kind]}")
    priced = {"price": price} if observed.kind in _PRICED else {}
    tables: list[Table] = module.tables(observed, **priced)
    if observed.ledger is not None:
        tables.insert(0, ledger_table(observed.ledger))
    notes = [*observed.notes, *(f"left out: {text}" for text in observed.left_out)]
    if tables and notes:
        fresh = [note for note in notes if not any(note in table.notes for table in tables)]
        tables[-1] = replace(tables[-1], notes=(*tables[-1].notes, *fresh))
    return tables


def together_table(groups: Sequence[Together]) -> Table:
    """What several sources saw around the same time."""
    rows = []
    for group in groups[:_MOST]:
        for kind, happening in group.parts[:_MOST]:
            later = (happening.seconds or group.start) - group.start
            rows.append(
                (
                    f"+{later:,.0f} s",
                    kind,
                    happening.node or "-",
                    happening.what,
                    happening.job or "-",
                )
            )
    hidden = len(groups) - _MOST
    return Table(
        title="What several sources saw within ten minutes of each other",
        columns=columns("after", "source", "node", "what", "job", right="after", wrap="what"),
        rows=tuple(rows),
        notes=(f"{hidden:,} more times: -o json has all",) if hidden > 0 else (),
    )
