"""Replay of a step with some operations at their usual durations: how long it would have taken.

All scenarios run side by side as lanes of arrays, because the order of operations is the same in
all: one pass over the graph for all steps, all replicas and all scenarios.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.op_timelines.dependencies import COMMUNICATION, OPTIMIZER, Graph
from computeflow.telemetry.op_timelines.timeline_file import Floats, OpTimeline

_MAX_CELLS = 8_000_000
"""Most doubles at once: 64 MB."""
_CLOCKS = 1e-2
"""Seconds by which an end may lie before the other side's start; beyond this the clock is broken,
and the transfer counts as 0."""
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDurations:
    """Each operation's own time: transfers without the wait for the other sides."""

    own: Floats
    """Operation by step by replica: the duration, or the transfer after the last side has begun."""
    began: Floats
    """The transfer's start: when the last side of a meeting had begun."""


def measure(timeline: OpTimeline, graph: Graph) -> OwnDurations:
    end = timeline.start + timeline.duration
    own, began = timeline.duration.copy(), timeline.start.copy()
    for meeting in graph.order:
        if not meeting.joined:
            continue
        ops = list(meeting.ops)
        last = timeline.start[ops].max(axis=0)
        if meeting.all_replicas:
            last = np.broadcast_to(last.max(axis=1, keepdims=True), last.shape)
        transfer = end[ops] - last
        own[ops] = np.where(transfer <= -_CLOCKS, 0, transfer)
        began[ops] = last
    return OwnDurations(own=own, began=began)


def usual_durations(
    timeline: OpTimeline, own: Floats, *, by: Sequence[str] = (), median: bool = False
) -> Any:
    """Each type's usual duration, operation by replica: the mean for computations and the median
    for communication, as published; or medians for all. `by` separates "stage", and "replica" too.
    """
    pattern = timeline.pattern
    table = np.empty((len(pattern.optype), timeline.replicas))
    keys = [
        (kind, int(stage) if "stage" in by else 0)
        for kind, stage in zip(pattern.optype, pattern.stage, strict=True)
    ]
    groups: dict[tuple[str, int], list[int]] = {}
    for op, key in enumerate(keys):
        groups.setdefault(key, []).append(op)
    for (kind, _), ops in groups.items():
        middle: Any = np.median if median or kind in COMMUNICATION else np.mean
        values = own[ops].astype(np.float64)
        if "replica" in by:
            table[ops] = middle(values, axis=(0, 1))[None, :]
        else:
            table[ops] = middle(values)
    return table


Scenario = Callable[[], Floats]
"""Makes its durations when it is replayed: those of all scenarios at once would not fit."""


def step_seconds(
    timeline: OpTimeline,
    graph: Graph,
    scenarios: Mapping[str, Scenario],
    replicas: int | None = None,
) -> dict[str, Floats]:
    """For each scenario, the time of each step until the last optimizer is done. A scenario gives
    durations by operation, step and replica; a step of 1 stands for all. `replicas` is the number
    of replicas in a scenario.
    """
    names = list(scenarios)
    shape = (*timeline.start.shape[:2], replicas or timeline.replicas)
    cells = int(np.prod(shape))
    at_once = max(_MAX_CELLS // cells, 1)
    by_scenario: dict[str, Floats] = {}
    for first in range(0, len(names), at_once):
        part = names[first : first + at_once]
        ends = ends_of(graph, shape, [scenarios[name]() for name in part])
        last = [op for op, kind in enumerate(timeline.pattern.optype) if kind == OPTIMIZER]
        chosen = ends[last] if last else ends
        for index, seconds in enumerate(chosen.max(axis=(0, 3))):
            by_scenario[part[index]] = seconds
    return by_scenario


def ends_of(graph: Graph, shape: tuple[int, ...], scenarios: Sequence[Floats]) -> Floats:
    """End of each operation, from the start of its step: operation by scenario by step by replica."""
    ops, steps, replicas = shape
    ends = np.empty((ops, len(scenarios), steps, replicas))
    for meeting in graph.order:
        start: Any = 0.0
        for op in meeting.ops:
            for other in graph.before[op]:
                start = np.maximum(start, ends[other])
        if meeting.all_replicas and not np.isscalar(start):
            start = start.max(axis=2, keepdims=True)
        for op in meeting.ops:
            for index, durations in enumerate(scenarios):
                own = start[index] if not np.isscalar(start) else start
                ends[op, index] = own + durations[op]
    return ends


def mix_durations(own: Floats, ideal: Floats, keep: Mask) -> Floats:
    """Measured durations where `keep` (operation by replica) is set, else the usual ones."""
    return np.where(keep[:, None, :], own, ideal[:, None, :])
