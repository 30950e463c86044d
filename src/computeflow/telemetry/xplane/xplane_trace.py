"""Traces of the devices in a profile: `read_devices`.

A GPU's streams are lines of its plane; a TPU's operations are one line, in which loops contain
their parts; on a CPU alone, operations stand on the host's threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.files.limits import RECORDED_DEVICES, XPLANE_EVENTS
from computeflow.telemetry.traces.event_names import Call, Mark, WorkKind
from computeflow.telemetry.traces.trace import (
    Calls,
    DeviceWork,
    Ints,
    Marks,
    Origin,
    Products,
    Trace,
    TraceStep,
)
from computeflow.telemetry.xplane.event_rows import (
    EventRows,
    NameNumbers,
    event_nanoseconds,
    leaves,
    whole_number,
)
from computeflow.telemetry.xplane.host_planes import HostPlanes, stated_flops
from computeflow.telemetry.xplane.plane_names import (
    ASYNC,
    DERIVED,
    DEVICE,
    OPS,
    STEPS,
    STREAM,
    copied_bytes,
    operation,
    work_of_kernel,
    work_of_operation,
)
from computeflow.telemetry.xplane.planes import Plane, PlaneEvent, PlaneLine

_WIDTH = 8
"""Columns of work: start, end, name, stream, correlation, work, bytes, FLOPs."""


NEEDS = {
    "compute.clock": "readings of the device's clock",
    "compute.recompute": "which operations compute again: a profile's operations have no passes",
    "optimizer": "which operations update weights: a program is compiled as a whole",
    "compute.model": "model_flops of operations, which this profile does not state, or --model",
    "input": "an annotation: jax.profiler.TraceAnnotation('data_load')",
    "checkpoint": "an annotation: jax.profiler.TraceAnnotation('checkpoint')",
    "evaluation": "an annotation: jax.profiler.TraceAnnotation('evaluation')",
    "host": "when the host launched the device's work",
}
_ON_HOST = "no work of a device: the host computed, and XLA's operations stand for kernels"
_NOT_LAUNCHED = (
    "the profile has no calls that launched the devices' work: the reason for their idle time is "
    "unknown"
)


def read_devices(path: Path, planes: Iterable[Plane]) -> tuple[list[Trace], list[str]]:
    """A trace for each device, and notes on what was left out."""
    planes = list(planes)
    names = NameNumbers()
    host = HostPlanes(planes, names)
    traces: list[Trace] = []
    left_out: list[str] = []
    for plane in planes:
        match = DEVICE.match(plane.name)
        if match is None:
            if plane.name.startswith("/device:"):
                left_out.append(f"plane {plane.name[:80]}: not a single device")
            continue
        if len(traces) >= RECORDED_DEVICES:
            left_out.append(f"plane {plane.name}: more than {RECORDED_DEVICES:,} devices")
            continue
        try:
            device = _Device(path, plane, host)
            traces.append(device.read(match[1].lower(), int(match[2][:9])))
        except InputError as error:
            left_out.append(str(error))
    if not traces:
        traces = [_on_host(path, host, number) for number in sorted(host.operations)][
            :RECORDED_DEVICES
        ]
    elif host.operations:
        left_out.append("operations that XLA ran on the host, beside devices")
    return traces, [*left_out, *host.left_out()]


class _Device:
    def __init__(self, path: Path, plane: Plane, host: HostPlanes) -> None:
        self.path, self.plane, self.host = path, plane, host
        self.names = host.names
        self.left_out: list[str] = []
        self.events = self.strange = 0
        self.apart = 0
        self.steps: list[TraceStep] = []
        self.modules: Counter[str] = Counter()

    def read(self, platform: str, number: int) -> Trace:
        table = self._work()
        works = table[:, 5]
        if not (works != WorkKind.COPY).any():
            what = "nothing but copies" if len(table) else "nothing"
            raise InputError(f"plane {self.plane.name}: {what} ran on it")
        launched = bool(np.isin(table[:, 4], self.host.calls.table()[:, 2]).any())
        if not launched:
            table[:, 4] = np.arange(len(table))
        calls = self.host.calls.table() if launched else _as_launched(table)
        steps, steps_from = self._steps(table, calls, launched)
        stats = self.plane.stats
        if self.apart:
            self.left_out.append(
                f"{self.plane.name}: {self.apart:,} asynchronous copies, which run beside operations"
            )
        if self.strange:
            self.left_out.append(f"{self.plane.name}: {self.strange:,} events without a valid time")
        if self.events > XPLANE_EVENTS:
            self.left_out.append(f"{self.plane.name}: events after {XPLANE_EVENTS:,}")
        origin = Origin(
            kind="xplane",
            plane=self.plane.name,
            device=number,
            platform=platform,
            on_clock=self.host.unix(int(table[0, 0])) is not None,
            steps_from=steps_from,
            peak_flops=_peak(stats),
            versions=self.host.versions,
        )
        name = stats.get("device_type_string") or stats.get("gpu_device_name") or ""
        return _trace(
            self.path,
            self.host,
            origin,
            table,
            calls,
            steps,
            name=str(name)[:200],
            events=self.events,
            left_out=self.left_out,
            launched=launched,
        )

    def _work(self) -> Ints:
        """The device's work, in order; on a TPU, operations that contain no other, and collectives
        beside them.
        """
        lines = list(self.plane.lines)
        streams = [line for line in lines if line.name.startswith(STREAM)]
        chosen = streams or [line for line in lines if line.name == OPS]
        pieces = [np.zeros((0, _WIDTH), np.int64)]
        for stream, line in enumerate(chosen):
            table = self._line(line, stream, kernels=bool(streams))
            pieces.append(table if streams else table[leaves(table)])
        for line in lines:
            if line.name == STEPS:
                self._step_line(line)
            elif line.name == ASYNC and not streams:
                table = self._line(line, len(chosen), kernels=False)
                comm = table[:, 5] == WorkKind.COMM
                self.apart += int((~comm).sum())
                pieces.append(table[comm])
        known = {*DERIVED, *(line.name for line in chosen)}
        if unknown := sorted({line.name[:40] for line in lines if line.name not in known}):
            listed = ", ".join(unknown[:8])
            self.left_out.append(f"{self.plane.name}: unknown lines: {listed}")
        table = np.concatenate(pieces)
        return np.asarray(table[np.lexsort((-table[:, 1], table[:, 0]))])

    def _line(self, line: PlaneLine, stream: int, *, kernels: bool) -> Ints:
        rows = EventRows(_WIDTH)
        for event in line.events:
            self.events += 1
            times = event_nanoseconds(event)
            if times is None:
                self.strange += 1
            elif times[1] > times[0] and self.events <= XPLANE_EVENTS:
                rows.add(*times, *self._meaning(event, stream, kernels=kernels))
                self.modules[str(event.stats.get("hlo_module", ""))] += times[1] - times[0]
        return rows.table()

    def _meaning(self, event: PlaneEvent, stream: int, *, kernels: bool) -> tuple[int, ...]:
        """Name, stream, correlation, work, bytes and FLOPs of an event."""
        stats = event.stats
        if kernels:
            name = event.name
            work = work_of_kernel(name, operation(str(stats.get("hlo_op", ""))))
        else:
            name = operation(event.name)
            work = work_of_operation(name, str(stats.get("hlo_category", "")))
        size = copied_bytes(str(stats.get("memcpy_details", "")))
        number = whole_number(stats.get("correlation_id", -1))
        flops = stated_flops(event.name, stats)
        return self.names[name], stream, number, int(work), size, flops

    def _step_line(self, line: PlaneLine) -> None:
        for order, event in enumerate(line.events):
            times = event_nanoseconds(event)
            if times is not None and times[1] > times[0]:
                text = event.name if event.name.isdecimal() else event.stats.get("step_name")
                number = whole_number(text, order)
                self.steps.append(TraceStep(number=number, start=times[0], end=times[1]))
        self.steps.sort(key=lambda step: step.start)

    def _steps(self, table: Ints, calls: Ints, launched: bool) -> tuple[tuple[TraceStep, ...], str]:
        """Steps, by the host's annotations where its calls are known, else by the device's own
        line, else by runs of a module; and how they are known.
        """
        own = _on_the_host(self.steps, table, calls) if launched else self.steps
        marked, text = self.host.steps()
        if own and not (marked and launched):
            return tuple(own), "the device's own line of steps"
        if not marked:
            marked, text = self.host.module_runs(self.modules)
        if not marked:
            return (), ""
        text += "" if launched else ", at the host's times"
        return _with_work(marked, calls[:, 0]), text


def _with_work(steps: Sequence[TraceStep], launched: Ints) -> tuple[TraceStep, ...]:
    """Steps from the first to the last in which something was launched."""
    if not len(launched):
        return ()
    low, high = int(launched.min()), int(launched.max())
    return tuple(step for step in steps if step.end > low and step.start <= high)


def _on_the_host(steps: Sequence[TraceStep], table: Ints, calls: Ints) -> list[TraceStep]:
    """The device's steps, at the times when their work was launched."""
    launched, known = _launched(table, calls)
    launched_steps = []
    for step in steps:
        rows = known & (table[:, 0] >= step.start) & (table[:, 0] < step.end)
        if rows.any():
            times = launched[rows]
            launched_steps.append(
                TraceStep(number=step.number, start=int(times.min()), end=int(times.max()) + 1)
            )
    return launched_steps


def _launched(table: Ints, calls: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Launch time of each row, and whether it is known."""
    calls = calls[np.argsort(calls[:, 2], kind="stable")]
    at = np.minimum(np.searchsorted(calls[:, 2], table[:, 4]), len(calls) - 1)
    return calls[at, 0], (calls[at, 2] == table[:, 4]) & (table[:, 4] >= 0)


def _as_launched(table: Ints) -> Ints:
    """One call for each row of work, at the time when it began."""
    zeros = np.zeros(len(table), np.int64)
    launch = zeros + int(Call.LAUNCH)
    return np.column_stack([table[:, 0], table[:, 0], table[:, 4], zeros - 1, launch])


def _peak(stats: Mapping[str, Any]) -> float | None:
    try:
        stated = float(stats.get("peak_teraflops_per_second", 0)) * 1e12
    except (OverflowError, TypeError, ValueError):
        return None
    return stated if 0 < stated < 1e20 else None


def _on_host(path: Path, host: HostPlanes, number: int) -> Trace:
    """The trace of an XLA device that is the host itself."""
    rows = host.operations[number].table()
    steps, steps_from = host.steps()
    if not steps:
        steps, steps_from = host.module_runs(host.modules)
    steps = _with_work(steps, rows[:, 0])
    comm = rows[:, 4] == WorkKind.COMM
    origin = Origin(
        kind="xplane",
        plane="/host:CPU",
        device=number,
        platform="cpu",
        on_clock=host.unix(int(rows[0, 0])) is not None,
        steps_from=steps_from if steps else "",
        versions=host.versions,
    )
    return _trace(
        path,
        host,
        origin,
        np.zeros((0, _WIDTH), np.int64),
        np.zeros((0, 5), np.int64),
        steps,
        name="",
        events=host.events,
        left_out=(),
        operations=rows[~comm],
        transfers=rows[comm],
    )


def _trace(
    path: Path,
    host: HostPlanes,
    origin: Origin,
    table: Ints,
    calls: Ints,
    steps: Sequence[TraceStep],
    *,
    name: str,
    events: int,
    left_out: Sequence[str],
    launched: bool = True,
    operations: Ints | None = None,
    transfers: Ints | None = None,
) -> Trace:
    if operations is None:
        operations = np.zeros((0, 6), np.int64)
    if transfers is None:
        transfers = np.zeros((0, 6), np.int64)
    work = [rows[:, 0] for rows in (table, operations, transfers) if len(rows)]
    first = min(int(starts[0]) for starts in work)
    zero = first // 1000 * 1000
    marks = host.marks.table()
    carried = np.column_stack(
        [
            transfers[:, :3],
            np.full(len(transfers), int(Mark.TRANSFER)),
            transfers[:, 3],
        ]
    )
    marks = np.concatenate([marks, carried])
    marks = marks[np.lexsort((-marks[:, 1], marks[:, 0]))]
    keep = np.isin(calls[:, 2], table[:, 4]) | (calls[:, 4] != Call.OTHER)
    calls = calls[keep]
    counted = table[table[:, 7] > 0]
    if len(counted):  # a product belongs to the step in which it was launched
        begun, known = _launched(counted, calls)
        counted[:, 0] = np.where(known, begun, counted[:, 0])
        counted = counted[np.argsort(counted[:, 0], kind="stable")]
    counted = counted[:, [0, 1, 3, 2, 7]]
    if len(operations):
        counted = operations[operations[:, 5] > 0][:, [0, 1, 2, 3, 5]]
    unix = host.unix(first)
    unmarked = np.insert(operations[:, :4], 3, 0, axis=1)
    return Trace(
        path=path,
        base=zero / 1000,
        header={"deviceProperties": [{"name": name}], "baseTimeNanoseconds": unix or 0},
        names=[*host.names, ""],
        device=_device_work(table, zero),
        calls=_calls(calls, zero),
        marks=_marks(marks, zero),
        products=_products(counted, zero, len(host.names)),
        collectives={},
        operators=_marks(unmarked, zero),
        steps=tuple(
            TraceStep(number=step.number, start=step.start - zero, end=step.end - zero)
            for step in steps
        ),
        events=events,
        left_out=tuple(left_out),
        notes=(_ON_HOST,) * (origin.platform == "cpu") + (_NOT_LAUNCHED,) * (not launched),
        origin=origin,
        needs=NEEDS,
        launched=launched,
    )


def _device_work(rows: Ints, zero: int) -> DeviceWork:
    return DeviceWork(
        start=rows[:, 0] - zero,
        end=rows[:, 1] - zero,
        name=rows[:, 2].astype(np.int32),
        stream=rows[:, 3].astype(np.int32),
        correlation=rows[:, 4].copy(),
        work=rows[:, 5].astype(np.int8),
        bytes=rows[:, 6].copy(),
    )


def _calls(rows: Ints, zero: int) -> Calls:
    return Calls(
        start=rows[:, 0] - zero,
        end=rows[:, 1] - zero,
        correlation=rows[:, 2].copy(),
        thread=rows[:, 3].astype(np.int32),
        call=rows[:, 4].astype(np.int8),
    )


def _marks(rows: Ints, zero: int) -> Marks:
    """Marks from rows of start, end, thread, mark and name."""
    return Marks(
        start=rows[:, 0] - zero,
        end=rows[:, 1] - zero,
        thread=rows[:, 2].astype(np.int32),
        mark=rows[:, 3].astype(np.int8),
        name=rows[:, 4].astype(np.int32),
    )


def _products(rows: Ints, zero: int, untyped: int) -> Products:
    """Operators with FLOPs, from rows of start, end, thread, name and FLOPs; types are not stated."""
    flops = rows[:, 4].astype(np.float64)
    zeros = np.zeros(len(rows), np.int64)
    return Products(
        start=rows[:, 0] - zero,
        end=rows[:, 1] - zero,
        thread=rows[:, 2].astype(np.int32),
        name=rows[:, 3].astype(np.int32),
        type=(zeros + untyped).astype(np.int32),
        flops=flops,
        full=flops,
        elements=zeros.astype(np.float64),
        scores=zeros,
        shape=(zeros + untyped).astype(np.int32),
    )
