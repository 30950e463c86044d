"""What a profile is made of: planes (a device, the host), their lines, and events with stats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

STATS = frozenset({
    "hlo_op", "hlo_category", "hlo_module", "correlation_id", "step_num", "step_name",
    "device_ordinal", "memcpy_details", "model_flops", "flops", "tf_op",
})  # fmt: skip
"""Of events: others are not looked at."""


class Event(NamedTuple):
    name: str
    start_ns: float
    duration_ns: float
    stats: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    name: str
    events: Iterable[Event]
    """May be read as they are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    name: str
    lines: Iterable[Line]
    stats: Mapping[str, Any] = field(default_factory=dict)
