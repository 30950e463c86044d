"""What the host's planes say: steps, driver calls, annotations, and XLA's own work on a CPU."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from computeflow.telemetry.traces.names import Mark, call_of
from computeflow.telemetry.traces.trace import Step
from computeflow.telemetry.xplane.columns import MOST_EVENTS, Names, Rows, timed, whole_number
from computeflow.telemetry.xplane.names import (
    HOSTS,
    METADATA,
    TASK,
    is_again,
    mark_of_annotation,
    module_of,
    operation,
    work_of_operation,
)
from computeflow.telemetry.xplane.planes import Event, Plane

_EARLIEST = 10**18
"""Nanoseconds of Unix time, 2001; a profile's times are counted from its start, or are Unix times."""


class Host:
    """Read once for all devices."""

    def __init__(self, planes: Iterable[Plane], names: Names) -> None:
        self.names = names
        self.calls, self.marks = Rows(5), Rows(5)
        """Start, end, correlation, thread, call; start, end, thread, mark, name."""
        self.operations: defaultdict[int, Rows] = defaultdict(lambda: Rows(6))
        """By device number: start, end, thread, name, work, FLOPs."""
        self.families: defaultdict[str, list[Step]] = defaultdict(list)
        self.runs: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        """Calls of compiled functions, by module: start and end."""
        self.modules: Counter[str] = Counter()
        """Nanoseconds of operations on the host itself."""
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

    def _line(self, events: Iterable[Event], thread: int) -> None:
        for event in events:
            self.events += 1
            if self.events > MOST_EVENTS:
                return
            times = timed(event)
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
                    step = Step(number=number, start=times[0], end=times[1])
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
        after = [f"the host's events after {MOST_EVENTS:,}"] if self.events > MOST_EVENTS else []
        strange = f"{self.strange:,} events of the host without a valid time"
        return [*after, strange] if self.strange else after

    def steps(self) -> tuple[tuple[Step, ...], str]:
        """Of the annotation that takes most time; one for each start; and how they are known."""
        if not self.families:
            return (), ""
        most = max(
            self.families, key=lambda name: sum(s.end - s.start for s in self.families[name])
        )
        found: dict[int, Step] = {}
        for step in sorted(self.families[most], key=lambda step: (step.start, -step.end)):
            found.setdefault(step.start, step)
        text = f"the host's annotations {most[:80]!r} (StepTraceAnnotation)"
        others = sorted(name[:80] for name in self.families if name != most)
        return tuple(found.values()), text + (f"; not {', '.join(others[:4])}" if others else "")

    def module_runs(self, modules: Counter[str]) -> tuple[tuple[Step, ...], str]:
        """Where no annotation marks steps: runs of the module that takes most time, each until the
        next, because what a step waits for lies between them.
        """
        for module, _ in modules.most_common():
            calls = _outermost(self.runs.get(module, ()))
            if len(calls) > 1:
                ends = [start for start, _ in calls[1:]] + [calls[-1][1]]
                steps = tuple(
                    Step(number=number, start=start, end=end)
                    for number, ((start, _), end) in enumerate(zip(calls, ends, strict=True))
                )
                text = f"runs of {module[:80]!r}, which takes most time: no StepTraceAnnotation"
                return steps, text
        return (), ""

    def unix(self, earliest: int) -> int | None:
        """Nanoseconds to add to the profile's times; None where it has no absolute clock."""
        if earliest >= _EARLIEST:
            return 0
        return self.started


def _outermost(calls: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """A call is recorded again inside of itself."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(calls, key=lambda call: (call[0], -call[1])):
        if not found or start >= found[-1][1]:
            found.append((start, end))
    return found


def stated_flops(name: str, stats: Mapping[str, Any]) -> int:
    """Of one execution, 0 where they are not stated or where it is computed again."""
    flops = whole_number(stats.get("model_flops", stats.get("flops", 0)), 0)
    return 0 if is_again(name, str(stats.get("tf_op", ""))) else max(flops, 0)


def _started(plane: Plane) -> int | None:
    found = whole_number(plane.stats.get("profile_start_time"))
    return found if _EARLIEST <= found < 4 * 10**18 else None
