"""The profiler's own cost, taken off the host's time.

A profiler slows the host: every operator and call is recorded. No constant for each event holds over
hosts and codes; the share of the host's time that is its own does better, and how long a launch takes
while recorded tells how slow this host is under this profiler. Kernels and waits are not the
profiler's, nor are long stretches in which nothing is recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from computeflow.replay.engine import Durations, Floats
from computeflow.replay.saving import saving_gaps
from computeflow.telemetry.traces.graph_builder import LONG_NS
from computeflow.telemetry.traces.step_graph import StepGraph

USUAL_LAUNCH_NS = 7_500.0
AT_USUAL = 0.54
"""The host's time without the profiler over that with it, where a launch takes `USUAL_LAUNCH_NS` while
recorded. 0.54 to 0.60 on four hosts (68 host-bound runs, `benchmarks.fit_profiler_cost --by-host`); on
a fifth, measured with an exponent of -0.8, 0.42."""
EXPONENT = -0.6
"""How it changes with the time of a launch: -1.23 on one host (benchmarks/reports/profiler_cost.md),
-0.54 on another (benchmarks/foreign_new_hands), -0.53 where four hosts count alike."""
WITH_STACKS = 0.8
"""The same for recordings with Python stacks, over those without: 0.71 to 0.77 in these fits, in which
few runs have stacks."""
SPREAD = 1.35
"""66 of these 68 runs lie within this factor, and four of seven of the host that is farthest off."""
LEAST, MOST = 0.3, 1.0
_LONG = 3.0
"""A gap longer than this many times the usual for its operators, or a call than this many launches,
holds work that the profiler does not slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    low: float
    middle: float
    high: float


UNMEASURED = {
    "nsys": Range(low=0.7, middle=0.9, high=1.0),
    "xplane": Range(low=0.0, middle=0.5, high=1.0),
}
"""Factors for profilers whose cost was not measured on many runs. JAX's traces Python, and its dispatch
is not recorded: of up to `DISPATCH_NS` before a launch nobody knows whose they are."""
DISPATCH_NS = 4_000_000.0
"""A step of JAX took 3.5 ms longer while recorded (one run on an H200)."""


def host_factor(graph: StepGraph) -> Range:
    """The host's time without the profiler over that with it."""
    if graph.profiler in UNMEASURED:
        return UNMEASURED[graph.profiler]
    if graph.launch <= 0:
        return Range(low=LEAST, middle=AT_USUAL, high=MOST)
    factor = AT_USUAL * math.pow(graph.launch / USUAL_LAUNCH_NS, EXPONENT)
    factor = _within(factor * (WITH_STACKS if graph.has_stacks else 1.0))
    return Range(low=_within(factor / SPREAD), middle=factor, high=_within(factor * SPREAD))


def _within(factor: float) -> float:
    return min(max(factor, LEAST), MOST)


def without_profiler(
    graph: StepGraph,
    durations: Durations,
    factor: float,
    irregular: float = 0.5,
    stalls: float = 1.0,
) -> Durations:
    """The durations with this factor, this share of irregular stalls, and the others times `stalls`;
    without calls with which memory grows.
    """
    line = graph.line
    slowed = _slowed(graph, durations)
    # a checkpoint in one of the steps is no accident, nor is the writing around its copies
    accidental = np.where(saving_gaps(graph), 0, np.minimum(line.irregular, line.free))
    gone = (1 - irregular) * accidental
    gone += (1 - stalls) * (np.maximum(line.free, line.loading) - accidental)
    cost = durations.cost - (1 - factor) * np.minimum(durations.cost, _LONG * graph.launch)
    growing = line.growing
    cost = np.where(growing, 0.0, cost)
    return replace(
        durations,
        gap=np.maximum(durations.gap - (1 - factor) * slowed - gone, 0.0),
        cost=cost,
        release=_released(durations, cost),
        waits=durations.waits & ~growing,
        tail=durations.tail * (stalls if durations.tail >= LONG_NS else 1.0),
    )


def _released(durations: Durations, cost: Floats) -> Floats:
    """The way to the device after a call is not the host's, and as long without the profiler."""
    beyond = np.maximum(durations.release - durations.cost, 0.0)
    share = cost / np.maximum(durations.cost, 1.0)
    return np.asarray(share * (durations.release - beyond) + beyond)


def _slowed(graph: StepGraph, durations: Durations) -> Floats:
    """The part of each gap in which the profiler slows the host; reading and decoding samples is
    hardly torch's.
    """
    line = graph.line
    if graph.profiler == "xplane":
        return np.asarray(np.minimum(durations.gap, DISPATCH_NS))
    host = np.maximum(durations.gap - line.free, 0.0)
    busy = line.operators > 0
    usual = float(np.median(host[busy] / line.operators[busy])) if busy.any() else math.inf
    slowed = np.minimum(host, _LONG * usual * (line.operators + 2))
    return np.asarray(np.minimum(slowed, np.maximum(durations.gap - line.loading, 0.0)))
