"""`run`: a step graph, run again from the durations of its parts.

The host goes from call to call; a launch hands work to a stream; a stream runs its work in order; a
call that waits returns when the work it waits for has ended. Only durations are given, starts follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.traces.step_graph import QUEUE, StepGraph

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """The graph's durations in nanoseconds; edits change them."""

    gap: Floats
    cost: Floats
    release: Floats
    delay: Floats
    waits: NDArray[np.bool_]
    """Calls that wait."""
    device: Floats
    """Time of each piece of the device's work; NaN where it is not launched."""
    tail: float
    """Host time after the last call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    step_seconds: float
    """The steady step: what one more window adds, by step."""
    first_window_seconds: float
    """From the window's start to the end of its last work, with the recorded backlog."""
    host_seconds: float
    """Host time of a step without its waits."""


def recorded(graph: StepGraph) -> Durations:
    line = graph.line
    last = int(line.end[-1]) if len(line) else 0
    return Durations(
        gap=line.gap.astype(np.float64),
        cost=line.cost.astype(np.float64),
        release=line.release.astype(np.float64),
        delay=line.delay.astype(np.float64),
        waits=line.waits_for >= 0,
        device=graph.device.seconds * 1e9,
        tail=float(max(graph.window - last, 0)),
    )


def run(graph: StepGraph, durations: Durations, windows: int = 2) -> Replayed:
    """Run the window several times on end; the first begins with what the recording had queued."""
    free, end, starts = _backlog(graph, durations)
    calls = _calls(graph, durations)
    time = 0.0
    finished = []
    for _ in range(windows):
        for gap, cost, release, target, delay, work in calls:
            time += gap
            if work:
                queue = starts.setdefault(work[0][1], [])
                if len(queue) >= QUEUE and queue[-QUEUE] > time:
                    time = queue[-QUEUE]
                _launch(work, time + release, free, end, queue)
            time += cost
            if target >= 0 and end[target] + delay > time:
                time = end[target] + delay
        time += durations.tail
        finished.append(max(max(free.values(), default=0.0), time))
    host = float(durations.gap.sum() + durations.cost.sum()) + durations.tail
    before = finished[-2] if windows > 1 else 0.0
    return Replayed(
        step_seconds=float(finished[-1] - before) / graph.steps / 1e9,
        first_window_seconds=float(finished[0]) / 1e9,
        host_seconds=host / graph.steps / 1e9,
    )


Work = tuple[int, int, float, float, int]
"""A row of the device's work, its stream, the gap before it, its length, and the row it waits for."""


def _calls(
    graph: StepGraph, durations: Durations
) -> list[tuple[float, float, float, int, float, tuple[Work, ...]]]:
    """Each call's gap, cost, release, awaited row, delay and work."""
    line, device = graph.line, graph.device
    bounds = np.searchsorted(device.call, np.arange(len(line) + 1)).tolist()
    rows: list[Work | None] = [
        None if length != length else (row, stream, gap, length, after)  # NaN: not launched
        for row, (stream, gap, length, after) in enumerate(
            zip(
                device.stream.tolist(),
                device.gap.tolist(),
                durations.device.tolist(),
                device.after.tolist(),
                strict=True,
            )
        )
    ]
    work = [
        tuple(each for each in rows[first:last] if each is not None)
        for first, last in pairwise(bounds)
    ]
    targets = np.where(durations.waits, line.waits_for, -1)
    targets = np.where(np.isnan(durations.device[targets]) & (targets >= 0), -1, targets)
    return list(
        zip(
            durations.gap.tolist(),
            durations.cost.tolist(),
            durations.release.tolist(),
            targets.tolist(),
            durations.delay.tolist(),
            work,
            strict=True,
        )
    )


def _launch(
    work: tuple[Work, ...],
    ready: float,
    free: dict[int, float],
    end: list[float],
    starts: list[float],
) -> None:
    """Put a call's work on its streams: the first when it is ready, the others after it."""
    for row, stream, gap, length, after in work:
        begin = free.get(stream, 0.0)
        if after < 0:
            begin += gap
        elif end[after] + gap > begin:
            begin = end[after] + gap
        if ready > begin:
            begin = ready
        end[row] = free[stream] = begin + length
        starts.append(begin)


def _backlog(
    graph: StepGraph, durations: Durations
) -> tuple[dict[int, float], list[float], dict[int, list[float]]]:
    """When each stream is free and each earlier work ends, and the starts of what was queued."""
    device = graph.device
    free: dict[int, float] = {}
    end = [0.0] * len(device)
    starts: dict[int, list[float]] = {}
    for row in np.flatnonzero(device.call < 0).tolist():
        end[row] = float(device.start[row] + durations.device[row])
        number = int(device.stream[row])
        free[number] = max(free.get(number, 0.0), end[row])
        starts.setdefault(number, []).append(float(device.start[row]))
    return free, end, {number: sorted(some) for number, some in starts.items()}
