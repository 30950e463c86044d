"""Outages of nodes as tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from computeflow.units import DAY_SECONDS, format_count, format_seconds, format_share
from computeflow.views.tables import Table, columns

if TYPE_CHECKING:
    from computeflow.telemetry.outages.outage_source import OutageFacts
    from computeflow.telemetry.source_reports import SourceReport

MAX_ROWS = 12


def tables(observed: SourceReport) -> list[Table]:
    facts: OutageFacts = observed.facts
    made = [table for table in (_causes_table(facts), _repeated_table(facts)) if table.rows]
    if observed.ledger is None and made:
        reason = f"no ledger: {observed.ledger_reason}"
        made[0] = replace(made[0], notes=(*made[0].notes, reason))
    return made


def _causes_table(facts: OutageFacts) -> Table:
    hidden = len(facts.causes) - MAX_ROWS
    notes = [f"{hidden:,} more: -o json has all"] if hidden > 0 else []
    if facts.still_out:
        notes.append(f"not back at the end: {', '.join(facts.still_out[:MAX_ROWS])}")
    return Table(
        title="Causes of outages, most time first",
        columns=columns(
            "cause",
            "outages",
            "nodes",
            "node-days",
            "share",
            "median",
            "longest",
            right="outages,nodes,node-days,share,median,longest",
            wrap="cause",
        ),
        rows=tuple(
            (
                cause.cause,
                f"{cause.outages:,}",
                f"{cause.nodes:,}",
                f"{cause.node_seconds / DAY_SECONDS:,.1f}",
                format_share(cause.node_seconds / facts.node_seconds)
                if facts.node_seconds
                else "-",
                format_seconds(cause.median_seconds),
                format_seconds(cause.longest_seconds),
            )
            for cause in facts.causes[:MAX_ROWS]
        ),
        notes=tuple(notes),
    )


def _repeated_table(facts: OutageFacts) -> Table:
    return Table(
        title="Nodes that went out of service more often than chance explains",
        columns=columns(
            "node",
            "outages",
            "expected",
            "chance",
            "node-days",
            "causes",
            right="outages,expected,chance,node-days",
            wrap="causes",
        ),
        rows=tuple(
            (
                node.node,
                f"{node.outages:,}",
                f"{node.expected:.1f}",
                f"{node.chance:.1g}",
                f"{node.node_seconds / DAY_SECONDS:,.1f}",
                ", ".join(node.causes),
            )
            for node in facts.repeated[:MAX_ROWS]
        ),
    )


def headline(observed: SourceReport) -> str:
    facts: OutageFacts = observed.facts
    of = "" if facts.nodes_total is None else f" of {facts.nodes_total:,}"
    days = f"{facts.node_seconds / DAY_SECONDS:,.1f}"
    return (
        f"{format_count(facts.outages, 'outage')} of {len(facts.node_names):,}{of} nodes in "
        f"{format_seconds(facts.end - facts.start)}: {days} node-days out of service."
    )
