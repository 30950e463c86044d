"""Stretches in which the host ran nothing that the profiler knows: `find_stalls`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.intervals import Intervals, union
from computeflow.telemetry.traces.event_names import Mark
from computeflow.telemetry.traces.rank_accounts import find_optimizer_steps, intervals_of_mark
from computeflow.telemetry.traces.trace import Ints, Trace, TraceStep, distinct

MIN_NS = 1_000_000
"""Shorter stretches are the interpreter's and the profiler's own time."""
MAX_STALLS = 10_000
_LOOK_BACK = 32
"""Operators looked at for the one that a stall lies in."""
_NEAR_CALLS = 8
"""Stalls so few calls apart may be at one place, from step to step."""
LONE_NS = 50_000_000
"""A stall so long is the program's own, also where it comes once: those that come at no one place in
ordinary recordings last 1 to 20 ms."""
_NODE = "autograd::engine::evaluate_function"
_COVERED = 0.3
"""Least share of a stall that an annotation must cover to explain it."""
_MARKS = {
    "input": Mark.INPUT,
    "checkpoint": Mark.CHECKPOINT,
    "evaluation": Mark.EVALUATION,
    "gc": Mark.COLLECT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStall:
    call: int
    """Row of the host's line that ended it."""
    start: int
    """Start in nanoseconds after that of the window."""
    length: int
    step: int
    mark: str
    """What an annotation says of it: input, checkpoint, evaluation, gc, optimizer; "" where none
    does."""
    function: str
    """The innermost Python function that lasted as long; "" where no stacks were recorded."""
    operator: str
    """The operator that ran all the time, without another inside of it; "" where none did."""
    is_regular: bool
    """Whether one comes back at the same place in most steps, it is too long for an accident, or an
    annotation explains it."""
    before: str
    """The operator that began last before it; "" at the start of the recording."""
    after: str
    """The operator that began first after it."""


def find_stalls(
    trace: Trace,
    calls: Ints,
    thread: NDArray[np.int32],
    window: tuple[int, int],
    steps: tuple[TraceStep, ...],
) -> tuple[HostStall, ...]:
    """Stalls of the host's line, longest last; `calls` are the starts of its calls in the window."""
    start, _end = window
    times = _times(trace, distinct(thread), window)
    lengths = np.diff(times)
    long = np.flatnonzero(lengths >= MIN_NS)
    long = long[~_calling(trace, thread).contains(times[long] + lengths[long] // 2)]
    long = long[np.argsort(-lengths[long], kind="stable")[:MAX_STALLS]]
    edges = np.array([step.start for step in steps[1:]], np.int64)
    marks = {name: intervals_of_mark(trace, mark) for name, mark in _MARKS.items()}
    marks["optimizer"] = _optimizing(trace, distinct(thread))
    stalls = []
    for row in np.sort(long).tolist():
        begin, length = int(times[row]), int(lengths[row])
        stalls.append(
            HostStall(
                call=int(np.searchsorted(calls, begin - start, side="right")),
                start=begin - start,
                length=length,
                step=int(np.searchsorted(edges, begin + length // 2, side="right")),
                mark=_meaning(marks, begin, begin + length),
                function=_function(trace, begin, begin + length),
                is_regular=True,
                operator=_covering(trace, begin, begin + length),
                before=_ended(trace, begin),
                after=_began(trace, begin + length),
            )
        )
    starts = np.array([step.start for step in steps] or [start], np.int64) - start
    return _with_regularity(stalls, calls, starts)


def _with_regularity(stalls: list[HostStall], calls: Ints, starts: Ints) -> tuple[HostStall, ...]:
    """Tell stalls that come back at one place in most steps from others, which are hardly the
    program's: threads of the loader and of the profiler hold the host up wherever it is just then.
    """
    first = np.searchsorted(calls, starts)
    near = max(_NEAR_CALLS, len(calls) // len(starts) // 100)
    places = np.array([stall.call - first[stall.step] for stall in stalls], np.int64)
    order = np.argsort(places, kind="stable")
    low = np.searchsorted(places[order], places - near)
    high = np.searchsorted(places[order], places + near, side="right")
    regular = [
        _comes_back(stall, [stalls[row] for row in order[one:other].tolist()], len(starts))
        for stall, one, other in zip(stalls, low.tolist(), high.tolist(), strict=True)
    ]
    return tuple(
        replace(stall, is_regular=bool(stall.mark) or often or stall.length >= LONE_NS)
        for stall, often in zip(stalls, regular, strict=True)
    )


def _comes_back(stall: HostStall, others: list[HostStall], steps: int) -> bool:
    """Whether stalls near its place in other steps lie between the same operators.

    In most steps; inside of a backward pass, whose operators are all alike, in all of them.
    """
    seen = {
        other.step for other in others if other.before == stall.before or other.after == stall.after
    }
    if stall.after.startswith(_NODE) or stall.operator.startswith(_NODE):
        return len(seen) == steps
    return len(seen) * 2 > steps


def _optimizing(trace: Trace, threads: NDArray[np.int32]) -> Intervals:
    """Steps of the optimizer, whose Python code goes through all parameters."""
    parts = [find_optimizer_steps(trace, int(thread)) for thread in threads]
    return union(
        np.concatenate([part.start for part in parts]), np.concatenate([part.end for part in parts])
    )


def _meaning(marks: dict[str, Intervals], start: int, end: int) -> str:
    """The annotation that covers a good part of a stall; "" where none does."""
    edges = np.array([start], np.int64), np.array([end], np.int64)
    for name, when in marks.items():
        if when.within(*edges)[0] >= _COVERED * (end - start):
            return name
    return ""


def _times(trace: Trace, threads: NDArray[np.int32], window: tuple[int, int]) -> Ints:
    """All times at which an operator or call of these threads began or ended, in order."""
    parts = [np.array(window, np.int64)]
    for table in (trace.operators, trace.calls):
        mine = np.isin(table.thread, threads)
        parts += [table.start[mine], table.end[mine]]
    times = np.sort(np.concatenate(parts))
    return times[(times >= window[0]) & (times <= window[1])]


def _calling(trace: Trace, thread: NDArray[np.int32]) -> Intervals:
    mine = np.isin(trace.calls.thread, distinct(thread))
    return union(trace.calls.start[mine], trace.calls.end[mine])


def _function(trace: Trace, start: int, end: int) -> str:
    """The shortest function that covers most of a stall."""
    functions = trace.functions
    overlap = np.minimum(functions.end, end) - np.maximum(functions.start, start)
    covering = np.flatnonzero(overlap >= 0.8 * (end - start))
    if not len(covering):
        return ""
    lengths = functions.end[covering] - functions.start[covering]
    name: str = trace.names[functions.name[covering[int(lengths.argmin())]]]
    return name[:200]


def _covering(trace: Trace, start: int, end: int) -> str:
    operators = trace.operators
    last = int(np.searchsorted(operators.start, start, side="right")) - 1
    for row in range(last, max(last - _LOOK_BACK, -1), -1):
        if operators.end[row] >= end:
            name: str = trace.names[operators.name[row]]
            return name[:200]
    return ""


def _ended(trace: Trace, time: int) -> str:
    operators = trace.operators
    last = int(np.searchsorted(operators.start, time, side="right")) - 1
    return trace.names[operators.name[last]][:200] if last >= 0 else ""


def _began(trace: Trace, time: int) -> str:
    operators = trace.operators
    first = int(np.searchsorted(operators.start, time, side="left"))
    return trace.names[operators.name[first]][:200] if first < len(operators) else ""
