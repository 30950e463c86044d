"""What a source of readings gives: `NodeLook`, behind the one method of `NodeSource`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from computeflow.collection.wire.batches import NodeReading, NodeSignal


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLook:
    """One look at a node: figures, what is not to be had and why, and what happened."""

    readings: tuple[NodeReading, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    signals: tuple[NodeSignal, ...] = ()


class NodeSource(Protocol):
    def look(self, at: int) -> NodeLook:
        """Read once; `at` is Unix microseconds. It raises nothing: what fails is in `missing`."""


def join_looks(looks: Iterable[NodeLook]) -> NodeLook:
    readings: list[NodeReading] = []
    missing: dict[str, str] = {}
    signals: list[NodeSignal] = []
    for look in looks:
        readings += look.readings
        missing |= look.missing
        signals += look.signals
    return NodeLook(readings=tuple(readings), missing=missing, signals=tuple(signals))
