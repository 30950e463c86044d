"""Parts of a profile: planes (a device, the host), their lines, and events with stats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

STATS = frozenset({
    "hlo_op", "hlo_category", "hlo_module", "correlation_id", "step_num", "step_name",
    "device_ordinal", "memcpy_details", "model_flops", "flops", "tf_op",
})  # fmt: skip
"""Stats of events that are read."""


class PlaneEvent(NamedTuple):
    name: str
    start_ns: float
    duration_ns: float
    stats: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneLine:
    name: str
    events: Iterable[PlaneEvent]
    """Events, which may be parsed on demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    name: str
    lines: Iterable[PlaneLine]
    stats: Mapping[str, Any] = field(default_factory=dict)
