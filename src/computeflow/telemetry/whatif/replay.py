"""A step again, with some operations at their usual durations: what it would have taken.

All what-ifs run side by side as lanes of arrays, because the order of operations is the same in all:
one pass over the graph for all steps, all replicas and all scenarios.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.whatif.graph import COMMUNICATION, OPTIMIZER, Graph
from computeflow.telemetry.whatif.trace import Floats, Timeline

_MOST_CELLS = 8_000_000
"""Of doubles at once: 64 MB."""
_CLOCKS = 1e-2
"""Seconds by which an end may lie before the other side's start: more is a broken clock, taken as 0."""
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What each operation itself took: transfers without the wait for the other sides."""

    own: Floats
    """Operation by step by replica: duration, or transfer after the last has begun."""
    began: Floats
    """When the last of those that meet had begun: the transfer's start."""


def measure(timeline: Timeline, graph: Graph) -> Measured:
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
    return Measured(own=own, began=began)


def usual(timeline: Timeline, own: Floats, *, by: Sequence[str] = (), median: bool = False) -> Any:
    """Each type's usual duration, operation by replica: the mean of computations and the median of
    communication, as published; or medians of all. `by`: of each "stage", of each "replica" too.
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
"""Makes its durations when it is replayed: those of all replicas at once would not fit."""


def step_seconds(
    timeline: Timeline,
    graph: Graph,
    scenarios: Mapping[str, Scenario],
    replicas: int | None = None,
) -> dict[str, Floats]:
    """Of each scenario (durations by operation, step and replica; a step of 1 stands for all), the
    time of each step: until the last optimizer is done. `replicas`: how many a scenario has.
    """
    names = list(scenarios)
    shape = (*timeline.start.shape[:2], replicas or timeline.replicas)
    cells = int(np.prod(shape))
    at_once = max(_MOST_CELLS // cells, 1)
    found: dict[str, Floats] = {}
    for first in range(0, len(names), at_once):
        part = names[first : first + at_once]
        ends = ends_of(graph, shape, [scenarios[name]() for name in part])
        last = [op for op, kind in enumerate(timeline.pattern.optype) if kind == OPTIMIZER]
        chosen = ends[last] if last else ends
        for place, seconds in enumerate(chosen.max(axis=(0, 3))):
            found[part[place]] = seconds
    return found


def ends_of(graph: Graph, shape: tuple[int, ...], scenarios: Sequence[Floats]) -> Floats:
    """Operation by scenario by step by replica: when each is done, from the start of its step."""
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
            for place, durations in enumerate(scenarios):
                own = start[place] if not np.isscalar(start) else start
                ends[op, place] = own + durations[op]
    return ends


def mixed(own: Floats, ideal: Floats, keep: Mask) -> Floats:
    """Measured where `keep` (operation by replica) says so, else the usual."""
    return np.where(keep[:, None, :], own, ideal[:, None, :])
