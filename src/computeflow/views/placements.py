"""Placements as a table: the links that a step's bytes cross under each order of the nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from computeflow.units import format_seconds, format_si
from computeflow.views.tables import Table, columns


def placement_headline(
    rows: Mapping[str, tuple[dict[str, float], float]], written: Sequence[str] = ()
) -> str:
    """The last order's step, compared with the others'; the last is ours."""
    *others, (_, (_, ours)) = rows.items()
    gains = ", ".join(f"{_difference(ours / seconds - 1)} {name}" for name, (_, seconds) in others)
    files = f" Wrote {len(written)} launcher files." if written else ""
    return f"Our order of the nodes: {format_seconds(ours)} a step, {gains}.{files}"


def _difference(change: float) -> str:
    if abs(change) < 0.0005:
        return "as fast as"
    return f"{100 * abs(change):.1f} % {'faster' if change < 0 else 'slower'} than"


_TIERS = {
    "node": "inside nodes",
    "block": "inside NVLink blocks",
    "leaf": "inside leaves",
    "spine": "between leaves",
    "core": "between spines",
    "torus": "on the torus",
}


def placement_table(
    rows: Mapping[str, tuple[dict[str, float], float]], written: Sequence[str] = ()
) -> Table:
    used = [tier for tier in next(iter(rows.values()))[0] if any(r[0][tier] for r in rows.values())]
    heads = ("order", *(_TIERS[tier] for tier in used), "step")
    return Table(
        title="Bytes of a step by the outermost link that they cross, and the predicted step",
        columns=columns(*heads, right=",".join(heads[1:])),
        rows=tuple(
            (
                name,
                *(format_si(by_tier[tier], "B") for tier in used),
                format_seconds(seconds),
            )
            for name, (by_tier, seconds) in rows.items()
        ),
        notes=(f"Wrote {', '.join(written)}.",) if written else (),
        strong=frozenset({len(rows) - 1}),
    )
