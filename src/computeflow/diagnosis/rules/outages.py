"""Rules on a table of outages: nodes that keep going out of service, then causes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from computeflow.diagnosis.rule import Draft, Missing, Outcome, report, seconds_evidence
from computeflow.diagnosis.scheduler_commands import drain_command
from computeflow.ledger import Evidence, Remedy
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import format_count, format_seconds

if TYPE_CHECKING:
    from computeflow.telemetry.outages.outage_source import OutageCause, OutageFacts, OutageNode

_GPUS = Missing("the GPUs of the cluster: --on NAME:COUNT")
_SHOWN = 3
_MIN_SHARE = 0.02
"""Least share of the time out of service for a cause to be a finding of its own."""


def node_out(observed: SourceReport) -> Outcome:
    facts: OutageFacts = observed.facts
    if facts.node_gpus is None:
        return _GPUS
    if observed.ledger is None:
        return []
    nodes = [d for node in facts.repeated for d in _repeated(node, facts.node_gpus, observed)]
    least = _MIN_SHARE * facts.node_seconds
    large = [cause for cause in facts.causes if cause.node_seconds >= least]
    causes = [d for cause in large for d in _cause(cause, facts.node_gpus, observed)]
    small = [cause for cause in facts.causes if 0 < cause.node_seconds < least]
    return [*nodes, *causes, *_rest(small, facts.node_gpus, observed)]


def _repeated(node: OutageNode, gpus: int, observed: SourceReport) -> list[Draft]:
    seconds = gpus * node.node_seconds
    named = ", ".join(node.causes[:_SHOWN])
    return report(
        f"node {node.node} went out of service {_times(node.outages)} ({named})",
        [("idle", seconds)],
        [
            Evidence(
                what=f"node {node.node}: outages; a node has {node.expected:.1f} in the mean "
                f"(chance below {node.chance:.1g})",
                where=observed.sources[0],
                value=float(node.outages),
                unit="outages",
                expected=node.expected,
            )
        ],
        Remedy(
            change=f"take node {node.node} out and test all of it, not only the part that failed last",
            command=drain_command(node.node, f"{node.outages} outages", ""),
            gain_high=seconds,
        ),
    )


def _cause(cause: OutageCause, gpus: int, observed: SourceReport) -> list[Draft]:
    longest = format_seconds(cause.longest_seconds)
    return report(
        f"{cause.cause} took {format_count(cause.nodes, 'node')} out {_times(cause.outages)}, for "
        f"{format_seconds(cause.median_seconds)} in the median, {longest} at most",
        [("idle", gpus * cause.node_seconds)],
        [_longest(cause, observed)],
        Remedy(
            change=f"find out why node {cause.longest_node} was out for {longest}; keep parts and "
            "spare nodes at hand",
            gain_high=gpus * cause.node_seconds,
        ),
    )


def _rest(causes: Sequence[OutageCause], gpus: int, observed: SourceReport) -> list[Draft]:
    """Small causes as one finding."""
    if not causes:
        return []
    seconds = gpus * math.fsum(cause.node_seconds for cause in causes)
    often = _times(sum(cause.outages for cause in causes))
    return report(
        f"{format_count(len(causes), 'smaller cause')} took nodes out {often}",
        [("idle", seconds)],
        [_longest(cause, observed) for cause in causes[:_SHOWN]],
        Remedy(change="none of them is worth a project of its own", gain_high=seconds),
    )


def _longest(cause: OutageCause, observed: SourceReport) -> Evidence:
    return seconds_evidence(
        f"node {cause.longest_node}: longest time out of service for {cause.cause}",
        observed.sources[0],
        cause.longest_seconds,
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
