"""What happened around the same time on the same node, in sources that do not know of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from computeflow.telemetry.observed import Happening, Observed

NEAR_SECONDS = 600.0
"""From a fault to what it does to a job: timeouts of collectives are ten minutes or more."""
MOST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Happenings of at least two kinds of sources, a fault among them, in order of time."""

    start: float
    end: float
    node: str
    """"" where none is known."""
    parts: tuple[tuple[str, Happening], ...]
    """Kind of source and what it saw."""


def together(observed: Sequence[Observed]) -> list[Together]:
    """Groups in which each happening follows the one before within `NEAR_SECONDS`, on a node that does
    not contradict the others'.
    """
    timed = sorted(
        ((h.seconds, each.kind, h) for each in observed for h in each.happenings if h.seconds),
        key=lambda item: (item[0], item[1], item[2].what),
    )
    found: list[Together] = []
    group: list[tuple[float, str, Happening]] = []
    node = ""
    for item in timed:
        own = item[2].node
        near = not group or item[0] - group[-1][0] <= NEAR_SECONDS
        if not near or (own and node and own != node):
            found += _kept(group, node)
            group, node = [], ""
        group.append(item)
        node = node or own
    found += _kept(group, node)
    return found[:MOST]


def _kept(group: list[tuple[float, str, Happening]], node: str) -> list[Together]:
    kinds = {kind for _, kind, _ in group}
    if len(kinds) < 2 or not any(h.fault for _, _, h in group):
        return []
    return [
        Together(
            start=group[0][0],
            end=group[-1][0],
            node=node,
            parts=tuple((kind, h) for _, kind, h in group),
        )
    ]
