"""How a node looks to its agent, as a headline and tables."""

from __future__ import annotations

from collections import defaultdict

from computeflow.collection.agent.node_agent import AgentReport
from computeflow.collection.wire.batches import NodeReading
from computeflow.units import format_si
from computeflow.views.tables import Table, columns

_MAX_SIGNALS = 20


def agent_headline(report: AgentReport) -> str:
    gpus = {reading.labels.get("UUID") for reading in report.look.readings} - {None}
    text = f"{report.node}: {len(gpus)} GPUs, {len(report.look.readings)} readings"
    if report.look.missing:
        text += f", {len(report.look.missing)} unavailable"
    if report.connected is None:
        return f"{text}."
    sent = f"{report.records:,} records of {report.ranks} ranks are with the collector"
    return f"{text}; {sent if report.connected else 'the collector did not take all records'}."


def agent_tables(report: AgentReport) -> list[Table]:
    look = report.look
    groups: dict[str, list[NodeReading]] = defaultdict(list)
    for reading in look.readings:
        groups[reading.name].append(reading)
    tables = [
        Table(
            title="readings",
            columns=columns("name", "series", "least", "most"),
            rows=tuple(
                (
                    name,
                    str(len(some)),
                    format_si(min(one.value for one in some), ""),
                    format_si(max(one.value for one in some), ""),
                )
                for name, some in sorted(groups.items())
            ),
        )
    ]
    if look.missing:
        absent = tuple((name.strip(), reason) for name, reason in sorted(look.missing.items()))
        tables.append(Table(title="unavailable", columns=columns("signal", "why"), rows=absent))
    if look.signals:
        rows = tuple((one.what, one.gpu, one.detail) for one in look.signals[-_MAX_SIGNALS:])
        tables.append(Table(title="signals", columns=columns("what", "gpu", "detail"), rows=rows))
    return tables
