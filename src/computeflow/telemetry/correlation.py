"""Events of different sources that happened close in time on the same node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from computeflow.telemetry.source_reports import Event, SourceReport

NEAR_SECONDS = 600.0
"""Longest time from a fault to its effect on a job: timeouts of collectives are ten minutes or
more."""
MAX_GROUPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelatedEvents:
    """Events of at least two kinds of sources, a fault among them, in order of time."""

    start: float
    end: float
    node: str
    """Empty where the node is unknown."""
    parts: tuple[tuple[str, Event], ...]
    """Kind of source, and the event it reported."""


def correlate(observed: Sequence[SourceReport]) -> list[CorrelatedEvents]:
    """Group events in which each follows the one before within `NEAR_SECONDS`, on nodes that do not
    contradict each other.
    """
    timed = sorted(
        (
            (event.seconds, report.kind, event)
            for report in observed
            for event in report.happenings
            if event.seconds
        ),
        key=lambda item: (item[0], item[1], item[2].what),
    )
    groups: list[CorrelatedEvents] = []
    group: list[tuple[float, str, Event]] = []
    node = ""
    for item in timed:
        own = item[2].node
        near = not group or item[0] - group[-1][0] <= NEAR_SECONDS
        if not near or (own and node and own != node):
            groups += _kept(group, node)
            group, node = [], ""
        group.append(item)
        node = node or own
    groups += _kept(group, node)
    return groups[:MAX_GROUPS]


def _kept(group: list[tuple[float, str, Event]], node: str) -> list[CorrelatedEvents]:
    kinds = {kind for _, kind, _ in group}
    if len(kinds) < 2 or not any(event.fault for _, _, event in group):
        return []
    return [
        CorrelatedEvents(
            start=group[0][0],
            end=group[-1][0],
            node=node,
            parts=tuple((kind, event) for _, kind, event in group),
        )
    ]
