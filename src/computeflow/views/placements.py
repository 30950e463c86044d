"""Placements as a table: how far the bytes of a step go under each order of the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from computeflow.units import format_seconds, format_si
from computeflow.views.tables import Table, columns


def placement_table(
    rows: Mapping[str, tuple[dict[str, float], float]], written: Sequence[str] = ()
) -> Table:
    used = [tier for tier in next(iter(rows.values()))[0] if any(r[0][tier] for r in rows.values())]
    heads = ("order", *used, "step")
    return Table(
        title="Bytes of a step by the outermost link they cross, and the predicted step",
        columns=columns(*heads, right=",".join(heads[1:])),
        rows=tuple(
            (
                name,
                *(format_si(by_tier[tier], "B") for tier in used),
                format_seconds(seconds),
            )
            for name, (by_tier, seconds) in rows.items()
        ),
        notes=tuple(f"wrote {path}" for path in written),
        strong=frozenset({len(rows) - 1}),
    )
