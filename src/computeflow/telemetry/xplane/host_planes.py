"""Planes of the host: steps, driver calls, annotations, and XLA's own work on a CPU."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from computeflow.files.limits import XPLANE_EVENTS
from computeflow.telemetry.traces.event_names import Mark, call_of
from computeflow.telemetry.traces.trace import TraceStep
from computeflow.telemetry.xplane.event_rows import (
    EventRows,
    NameNumbers,
    event_nanoseconds,
    whole_number,
)
from computeflow.telemetry.xplane.plane_names import (
    HOSTS,
    METADATA,
    TASK,
    is_again,
    mark_of_annotation,
    module_of,
    operation,
    work_of_operation,
)
from computeflow.telemetry.xplane.planes import Plane, PlaneEvent

_EARLIEST = 10**18
"""Earliest Unix time in nanoseconds, 2001; smaller times are counted from the profile's start."""


class HostPlanes:
    """The host's planes, read once for all devices."""

    def __init__(self, planes: Iterable[Plane], names: NameNumbers) -> None:
        self.names = names
        self.calls, self.marks = EventRows(5), EventRows(5)
        """Rows of start, end, correlation, thread, call; and of start, end, thread, mark, name."""
        self.operations: defaultdict[int, EventRows] = defaultdict(lambda: EventRows(6))
        """Rows of start, end, thread, name, work, FLOPs, by device number."""
        self.families: defaultdict[str, list[TraceStep]] = defaultdict(list)
        self.runs: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        """Start and end of calls of compiled functions, by module."""
        self.modules: Counter[str] = Counter()
        """Nanoseconds of operations on the host itself, by module."""
        self.versions: tuple[str, ...] = ()
        self.events = self.strange = 0
        self.started: int | None = None
        self._meanings: dict[str, Mark] = {}
        for plane in planes:
            if plane.name == TASK:
                self.started = _started(plane)
            elif plane.name == METADATA:
                stated = ((name, plane.stats.get(f"{name}_version")) for name in ("jax", "jaxlib"))
                self.versions = tuple(f"{name} {text}"[:80] for name, text in stated if text)
            elif plane.name in HOSTS:
                for thread, line in enumerate(plane.lines):
                    self._line(line.events, thread + 10_000 * HOSTS.index(plane.name))

    def _line(self, events: Iterable[PlaneEvent], thread: int) -> None:
        for event in events:
            self.events += 1
            if self.events > XPLANE_EVENTS:
                return
            times = event_nanoseconds(event)
            if times is None:
                self.strange += 1
                continue
            stats = event.stats
            if "hlo_op" in stats:
                self._operation(event.name, times, thread, stats)
            elif "correlation_id" in stats:
                number = whole_number(stats["correlation_id"])
                self.calls.add(*times, number, thread, int(call_of(event.name)))
            elif "step_num" in stats:
                number = whole_number(stats["step_num"])
                if number >= 0 and times[1] > times[0]:
                    step = TraceStep(number=number, start=times[0], end=times[1])
                    self.families[event.name].append(step)
            elif module := module_of(event.name):
                self.runs[module].append(times)
            else:
                self._annotation(event.name, times, thread)

    def _operation(
        self, name: str, times: tuple[int, int], thread: int, stats: Mapping[str, Any]
    ) -> None:
        if times[1] > times[0]:
            own = operation(str(stats["hlo_op"]))
            work = work_of_operation(own, str(stats.get("hlo_category", "")))
            device = whole_number(stats.get("device_ordinal", 0), 0)
            self.modules[str(stats.get("hlo_module", ""))] += times[1] - times[0]
            rows = self.operations[device]
            rows.add(*times, thread, self.names[own], int(work), stated_flops(name, stats))

    def _annotation(self, name: str, times: tuple[int, int], thread: int) -> None:
        mark = self._meanings.get(name)
        if mark is None:
            mark = mark_of_annotation(name)
            if len(self._meanings) < 1_000_000:
                self._meanings[name] = mark
        if mark not in (Mark.NONE, Mark.STEP) and times[1] > times[0]:
            self.marks.add(*times, thread, int(mark), self.names[name[:512]])

    def left_out(self) -> list[str]:
        after = (
            [f"the host's events after {XPLANE_EVENTS:,}"] if self.events > XPLANE_EVENTS else []
        )
        strange = f"{self.strange:,} events of the host without a valid time"
        return [*after, strange] if self.strange else after

    def steps(self) -> tuple[tuple[TraceStep, ...], str]:
        """Steps of the annotation that takes most time, one for each start; and how they are known."""
        if not self.families:
            return (), ""
        most = max(
            self.families, key=lambda name: sum(s.end - s.start for s in self.families[name])
        )
        by_start: dict[int, TraceStep] = {}
        for step in sorted(self.families[most], key=lambda step: (step.start, -step.end)):
            by_start.setdefault(step.start, step)
        text = f"the host's annotations {most[:80]!r} (StepTraceAnnotation)"
        others = sorted(name[:80] for name in self.families if name != most)
        return tuple(by_start.values()), text + (f"; not {', '.join(others[:4])}" if others else "")

    def module_runs(self, modules: Counter[str]) -> tuple[tuple[TraceStep, ...], str]:
        """Steps from the runs of the module that takes most time, where no annotation marks steps.
        Each lasts until the next begins, because a step's waits lie between the runs.
        """
        for module, _ in modules.most_common():
            calls = _outermost(self.runs.get(module, ()))
            if len(calls) > 1:
                ends = [start for start, _ in calls[1:]] + [calls[-1][1]]
                steps = tuple(
                    TraceStep(number=number, start=start, end=end)
                    for number, ((start, _), end) in enumerate(zip(calls, ends, strict=True))
                )
                text = f"runs of {module[:80]!r}, which takes most time: no StepTraceAnnotation"
                return steps, text
        return (), ""

    def unix(self, earliest: int) -> int | None:
        """Nanoseconds to add to the profile's times for Unix time; None where it has no absolute
        clock.
        """
        if earliest >= _EARLIEST:
            return 0
        return self.started


def _outermost(calls: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Calls without those inside another: a call is recorded again inside of itself."""
    outer: list[tuple[int, int]] = []
    for start, end in sorted(calls, key=lambda call: (call[0], -call[1])):
        if not outer or start >= outer[-1][1]:
            outer.append((start, end))
    return outer


def stated_flops(name: str, stats: Mapping[str, Any]) -> int:
    """FLOPs of one execution; 0 where they are not stated or the operation computes again."""
    flops = whole_number(stats.get("model_flops", stats.get("flops", 0)), 0)
    return 0 if is_again(name, str(stats.get("tf_op", ""))) else max(flops, 0)


def _started(plane: Plane) -> int | None:
    start = whole_number(plane.stats.get("profile_start_time"))
    return start if _EARLIEST <= start < 4 * 10**18 else None
