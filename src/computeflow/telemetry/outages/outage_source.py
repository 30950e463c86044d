"""The source `outages`: how long nodes were out of service, by cause, and which came back to it.

    idle          GPUs of the nodes out of service
    unexplained   the rest: what ran there is in no table of outages

Time that two outages of a node share is the first one's. A node is named where it went out of service
more often than chance explains: of n nodes alike with m outages each in the mean, some node has k or
more with a probability of at most n exp(k - m) (m / k)^k (Chernoff's bound for a Poisson count).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from computeflow.errors import InputError
from computeflow.ledger import Entry, Ledger, Window
from computeflow.telemetry.outages.outage_rows import OutageRow, is_outage_table, read_outages
from computeflow.telemetry.source_reports import Event, SourceReport, SourceRequest
from computeflow.units import format_count

KIND = "outages"
LEVEL = 0.01
MAX_EVENTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageCause:
    """Outages of one cause, those of nodes that stand out left aside."""

    cause: str
    outages: int
    nodes: int
    node_seconds: float
    median_seconds: float
    """Median time that a node was out of service."""
    longest_seconds: float
    longest_node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageNode:
    """A node that went out of service more often than chance explains."""

    node: str
    outages: int
    expected: float
    """Outages of a node in the mean."""
    chance: float
    """Upper bound of the probability of so many on any node if all are alike."""
    node_seconds: float
    causes: tuple[str, ...]
    """Most outages first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageFacts:
    start: float
    end: float
    counted: bool
    """Whether times count from the table's own start, not from 1970."""
    outages: int
    node_names: tuple[str, ...]
    """Nodes in the table."""
    nodes_total: int | None
    node_gpus: int | None
    """GPUs of a node; None where the user did not state the GPUs."""
    node_seconds: float
    """Out of service, all nodes."""
    repeated: tuple[OutageNode, ...]
    causes: tuple[OutageCause, ...]
    """Most time first."""
    still_out: tuple[str, ...]
    """Nodes that were not back at the end."""


@dataclass(frozen=True, slots=True)
class OutageTables:
    kind: str = KIND

    def recognises(self, path: Path, head: bytes) -> bool:
        return is_outage_table(head.decode("utf-8", "replace").lstrip("\ufeff\r\n\t "))

    def observe(self, paths: Sequence[Path], request: SourceRequest) -> list[SourceReport]:
        return [_observe(path, request) for path in paths]


@dataclass(frozen=True, slots=True)
class _Outage:
    row: OutageRow
    seconds: float
    """Within the period, without what an earlier outage of the node has."""


def _observe(path: Path, request: SourceRequest) -> SourceReport:
    read = read_outages(path)
    if read.counted and (request.start is not None or request.end is not None):
        raise InputError(f"{path}: its times count from its own start, --period has no meaning")
    first, last = _period(read.rows, request, counted=read.counted)
    outages = _within(read.rows, first, last)
    if not outages:
        raise InputError(f"{path}: no outage in the period")
    node_gpus = _node_gpus(request)
    nodes = len({outage.row.node for outage in outages})
    total = _nodes_total(path, request, node_gpus, nodes)
    facts = _facts(outages, first, last, total, node_gpus, counted=read.counted)
    ledger = _ledger(facts, request.gpus)
    return SourceReport(
        kind=KIND,
        sources=(str(path),),
        facts=facts,
        ledger=ledger,
        ledger_reason="" if ledger else _no_ledger_reason(facts),
        happenings=() if read.counted else tuple(_events(outages)),
        left_out=tuple(read.left_out),
    )


def _period(
    rows: Sequence[OutageRow], request: SourceRequest, *, counted: bool
) -> tuple[float, float]:
    """The requested one; else from the table's own zero, or the first start, to its last time."""
    times = [time for row in rows for time in (row.start, row.end) if not math.isnan(time)]
    first = 0.0 if counted else min(times)
    return (
        first if request.start is None else request.start,
        max(times) if request.end is None else request.end,
    )


def _within(rows: Sequence[OutageRow], first: float, last: float) -> list[_Outage]:
    until: dict[str, float] = {}
    found = []
    for row in sorted(rows, key=lambda row: (row.start, row.node)):
        end = min(last if math.isnan(row.end) else row.end, last)
        begin = max(row.start, until.get(row.node, first), first)
        if row.start > last or end < first:
            continue
        found.append(_Outage(row, max(end - begin, 0.0)))
        until[row.node] = max(end, until.get(row.node, first))
    return found


def _node_gpus(request: SourceRequest) -> int | None:
    """GPUs of the node type that is usual for the named device."""
    device = request.accelerator
    if device is None or request.gpus is None or device.node is None:
        return None
    return request.catalog.nodes[device.node].count


def _nodes_total(path: Path, request: SourceRequest, each: int | None, seen: int) -> int | None:
    if each is None or request.gpus is None:
        return None
    total = request.gpus // each
    if total < seen:
        raise InputError(
            f"{path}: {seen:,} nodes are in it, and {request.gpus:,} GPUs are "
            f"{format_count(total, 'node')} of {each}"
        )
    return total


def _facts(
    outages: Sequence[_Outage],
    first: float,
    last: float,
    total: int | None,
    node_gpus: int | None,
    *,
    counted: bool,
) -> OutageFacts:
    nodes = tuple(dict.fromkeys(outage.row.node for outage in outages))
    repeated = _repeated(outages, total or len(nodes))
    named = {node.node for node in repeated}
    return OutageFacts(
        start=first,
        end=last,
        counted=counted,
        outages=len(outages),
        node_names=nodes,
        nodes_total=total,
        node_gpus=node_gpus,
        node_seconds=_sum(outages),
        repeated=repeated,
        causes=_causes([outage for outage in outages if outage.row.node not in named]),
        still_out=tuple(
            dict.fromkeys(outage.row.node for outage in outages if math.isnan(outage.row.end))
        ),
    )


def _sum(outages: Sequence[_Outage]) -> float:
    return math.fsum(outage.seconds for outage in outages)


def _repeated(outages: Sequence[_Outage], nodes: int) -> tuple[OutageNode, ...]:
    mean = len(outages) / nodes
    by_node: dict[str, list[_Outage]] = {}
    for outage in outages:
        by_node.setdefault(outage.row.node, []).append(outage)
    found = []
    for node, own in by_node.items():
        count = len(own)
        chance = min(1.0, nodes * math.exp(count - mean + count * math.log(mean / count)))
        if count <= mean or chance >= LEVEL:
            continue
        found.append(
            OutageNode(
                node=node,
                outages=count,
                expected=mean,
                chance=chance,
                node_seconds=_sum(own),
                causes=tuple(name for name, _ in Counter(o.row.cause for o in own).most_common()),
            )
        )
    return tuple(sorted(found, key=lambda node: (-node.node_seconds, node.node)))


def _causes(outages: Sequence[_Outage]) -> tuple[OutageCause, ...]:
    by_cause: dict[str, list[_Outage]] = {}
    for outage in outages:
        by_cause.setdefault(outage.row.cause, []).append(outage)
    causes = []
    for cause, own in by_cause.items():
        longest = max(own, key=lambda outage: outage.seconds)
        causes.append(
            OutageCause(
                cause=cause or "no cause",
                outages=len(own),
                nodes=len({outage.row.node for outage in own}),
                node_seconds=_sum(own),
                median_seconds=median(outage.seconds for outage in own),
                longest_seconds=longest.seconds,
                longest_node=longest.row.node,
            )
        )
    return tuple(sorted(causes, key=lambda cause: (-cause.node_seconds, cause.cause)))


def _no_ledger_reason(facts: OutageFacts) -> str:
    if facts.node_gpus is None:
        return "the GPUs of the cluster are in no table of outages: state them, --on NAME:COUNT"
    return "the table ends where it begins"


def _ledger(facts: OutageFacts, gpus: int | None) -> Ledger | None:
    if gpus is None or facts.node_gpus is None or facts.end <= facts.start:
        return None
    idle = Entry(account="idle", gpu_seconds=facts.node_gpus * facts.node_seconds)
    return Ledger.closed(
        [idle],
        gpus=gpus,
        wall_seconds=facts.end - facts.start,
        basis="measured",
        window=Window(label="nodes", start_seconds=facts.start, end_seconds=facts.end),
        unavailable={"compute": "accounting of the same nodes", "lost": "accounting of the jobs"},
    )


def _events(outages: Sequence[_Outage]) -> list[Event]:
    return [
        Event(
            seconds=outage.row.start,
            what=f"out of service: {outage.row.cause or 'no cause'}",
            node=outage.row.node,
            fault=True,
        )
        for outage in outages[:MAX_EVENTS]
    ]
