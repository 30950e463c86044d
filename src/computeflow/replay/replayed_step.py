"""`ReplayedStep`: the recorded step as it runs without its profiler, and what edits of it gain."""

from __future__ import annotations

from dataclasses import dataclass

from computeflow.replay.edits import Edit
from computeflow.replay.engine import Durations, Replayed, recorded, run
from computeflow.replay.profiler_cost import Range, host_factor, without_profiler
from computeflow.telemetry.traces.step_graph import StepGraph

NOISE = 0.035
"""80 % of the recordings of known truth whose device is the limit lie within this (17 recordings on two
H200): repeats differ by 1 to 3 %, and after a pause a device is faster than it stays."""
STALLS = (0.85, 1.0, 1.2)
"""Time of the host's own work (files, samples, Python) without the profiler over that with it: -18 to
+17 % in recordings whose truth is known. No profiler slows it, but runs of it differ."""
UNDERSTOOD = 0.005
"""Largest relative difference between the recorded window and its unchanged replay."""
IRREGULAR = (0.0, 0.5, 1.0)
"""Share of irregular stalls that are there without the profiler, at each end of the factor: nobody
knows, so none, half and all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedStep:
    graph: StepGraph
    factor: Range
    """The host's time without the profiler over that with it."""
    error: float
    """The unchanged replay of the window over the recorded one, less 1."""
    recorded_seconds: float
    """The steady step with the profiler."""
    seconds: Range
    """The steady step without it."""
    ends: tuple[float, float, float]
    """The steady step at the low, middle and high end of the factor."""
    host_seconds: float
    """Host time of the step without its waits, and without the profiler."""
    durations: tuple[Durations, Durations, Durations]
    """Durations at the low, middle and high end of the factor."""

    @property
    def is_understood(self) -> bool:
        return abs(self.error) <= UNDERSTOOD

    def replay(self, edit: Edit | None = None, end: int = 1) -> Replayed:
        """Replay at one end of the factor's range (0, 1, 2), changed or not."""
        durations = self.durations[end]
        return run(self.graph, durations if edit is None else edit(self.graph, durations))


def replay_step(graph: StepGraph, measured: float | None = None) -> ReplayedStep:
    """Replay a graph; `measured` is the user's own step time in seconds, which pins the host."""
    plain = recorded(graph)
    first = run(graph, plain)
    window = max(graph.recorded_end, graph.window) / 1e9
    factor = host_factor(graph) if measured is None else _pinned(graph, plain, measured)
    factors = (factor.low, factor.middle, factor.high)
    irregular, stalls = (IRREGULAR, STALLS) if measured is None else ((0.5,) * 3, (1.0,) * 3)
    ends = tuple(
        without_profiler(graph, plain, *each)
        for each in zip(factors, irregular, stalls, strict=True)
    )
    runs = [run(graph, durations) for durations in ends]
    noise = NOISE if measured is None else 0.0
    return ReplayedStep(
        graph=graph,
        factor=factor,
        error=first.first_window_seconds / window - 1 if window else 0.0,
        recorded_seconds=first.step_seconds,
        seconds=Range(
            low=(1 - noise) * min(each.step_seconds for each in runs),
            middle=runs[1].step_seconds,
            high=(1 + noise) * max(each.step_seconds for each in runs),
        ),
        ends=(runs[0].step_seconds, runs[1].step_seconds, runs[2].step_seconds),
        host_seconds=runs[1].host_seconds,
        durations=(ends[0], ends[1], ends[2]),
    )


def _pinned(graph: StepGraph, plain: Durations, measured: float) -> Range:
    """The factor at which the replayed step takes the measured time, as far as the host decides it.

    Where workers load the data, only as far as the profiler's cost allows: they had batches ready when
    the recording began, and what a longer run waits for them is not in the window.
    """
    low, high = 0.05, host_factor(graph).high if graph.has_workers else 1.0
    for _ in range(16):
        middle = (low + high) / 2
        slow = run(graph, without_profiler(graph, plain, middle)).step_seconds > measured
        low, high = (low, middle) if slow else (middle, high)
    return Range(low=middle, middle=middle, high=middle)
