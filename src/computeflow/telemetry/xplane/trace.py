"""The devices of a profile as traces: `read_devices`.

A GPU's streams are lines of its plane; a TPU's operations are one line, in which loops hold their
parts; on a CPU alone, operations stand on the host's threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.telemetry.traces.names import Call, Mark, Work
from computeflow.telemetry.traces.trace import (
    Calls,
    DeviceWork,
    Ints,
    Marks,
    Origin,
    Products,
    Step,
    Trace,
)
from computeflow.telemetry.xplane.columns import (
    MOST_EVENTS,
    Names,
    Rows,
    leaves,
    timed,
    whole_number,
)
from computeflow.telemetry.xplane.host import Host, stated_flops
from computeflow.telemetry.xplane.names import (
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
from computeflow.telemetry.xplane.planes import Event, Line, Plane

MOST_DEVICES = 1024
_WIDTH = 8
"""Start, end, name, stream, correlation, work, bytes, FLOPs."""


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
_ON_HOST = "no device's work: the host computed, and XLA's operations stand for kernels"
_NOT_LAUNCHED = (
    "the profile has no calls that launched the devices' work: why they had nothing to do is not "
    "known"
)


def read_devices(path: Path, planes: Iterable[Plane]) -> tuple[list[Trace], list[str]]:
    """Each with its own work; and what of the profile is left out."""
    planes = list(planes)
    names = Names()
    host = Host(planes, names)
    found: list[Trace] = []
    left_out: list[str] = []
    for plane in planes:
        match = DEVICE.match(plane.name)
        if match is None:
            if plane.name.startswith("/device:"):
                left_out.append(f"plane {plane.name[:80]}: not a device's own")
            continue
        if len(found) >= MOST_DEVICES:
            left_out.append(f"plane {plane.name}: more than {MOST_DEVICES:,} devices")
            continue
        try:
            device = _Device(path, plane, host)
            found.append(device.read(match[1].lower(), int(match[2][:9])))
        except InputError as error:
            left_out.append(str(error))
    if not found:
        found = [_on_host(path, host, number) for number in sorted(host.operations)][:MOST_DEVICES]
    elif host.operations:
        left_out.append("operations that XLA ran on the host, beside devices")
    return found, [*left_out, *host.left_out()]


class _Device:
    def __init__(self, path: Path, plane: Plane, host: Host) -> None:
        self.path, self.plane, self.host = path, plane, host
        self.names = host.names
        self.left_out: list[str] = []
        self.events = self.strange = 0
        self.apart = 0
        self.steps: list[Step] = []
        self.modules: Counter[str] = Counter()

    def read(self, platform: str, number: int) -> Trace:
        table = self._work()
        works = table[:, 5]
        if not (works != Work.COPY).any():
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
        if self.events > MOST_EVENTS:
            self.left_out.append(f"{self.plane.name}: events after {MOST_EVENTS:,}")
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
        """What ran, in order; on a TPU, operations that hold no other and collectives beside them."""
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
                comm = table[:, 5] == Work.COMM
                self.apart += int((~comm).sum())
                pieces.append(table[comm])
        known = {*DERIVED, *(line.name for line in chosen)}
        if unknown := sorted({line.name[:40] for line in lines if line.name not in known}):
            listed = ", ".join(unknown[:8])
            self.left_out.append(f"{self.plane.name}: lines that are not understood: {listed}")
        table = np.concatenate(pieces)
        return np.asarray(table[np.lexsort((-table[:, 1], table[:, 0]))])

    def _line(self, line: Line, stream: int, *, kernels: bool) -> Ints:
        rows = Rows(_WIDTH)
        for event in line.events:
            self.events += 1
            times = timed(event)
            if times is None:
                self.strange += 1
            elif times[1] > times[0] and self.events <= MOST_EVENTS:
                rows.add(*times, *self._meaning(event, stream, kernels=kernels))
                self.modules[str(event.stats.get("hlo_module", ""))] += times[1] - times[0]
        return rows.table()

    def _meaning(self, event: Event, stream: int, *, kernels: bool) -> tuple[int, ...]:
        """Name, stream, correlation, work, bytes and FLOPs."""
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

    def _step_line(self, line: Line) -> None:
        for order, event in enumerate(line.events):
            times = timed(event)
            if times is not None and times[1] > times[0]:
                text = event.name if event.name.isdecimal() else event.stats.get("step_name")
                number = whole_number(text, order)
                self.steps.append(Step(number=number, start=times[0], end=times[1]))
        self.steps.sort(key=lambda step: step.start)

    def _steps(self, table: Ints, calls: Ints, launched: bool) -> tuple[tuple[Step, ...], str]:
        """By the host's annotations where its calls are known, else by the device's own line, else by
        runs of a module.
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


def _with_work(steps: Sequence[Step], launched: Ints) -> tuple[Step, ...]:
    """Without those before the first and after the last in which something was launched."""
    if not len(launched):
        return ()
    low, high = int(launched.min()), int(launched.max())
    return tuple(step for step in steps if step.end > low and step.start <= high)


def _on_the_host(steps: Sequence[Step], table: Ints, calls: Ints) -> list[Step]:
    """Steps of the device by when their work was launched."""
    launched, known = _launched(table, calls)
    found = []
    for step in steps:
        rows = known & (table[:, 0] >= step.start) & (table[:, 0] < step.end)
        if rows.any():
            made = launched[rows]
            found.append(Step(number=step.number, start=int(made.min()), end=int(made.max()) + 1))
    return found


def _launched(table: Ints, calls: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """When each row was launched, and whether that is known."""
    calls = calls[np.argsort(calls[:, 2], kind="stable")]
    at = np.minimum(np.searchsorted(calls[:, 2], table[:, 4]), len(calls) - 1)
    return calls[at, 0], (calls[at, 2] == table[:, 4]) & (table[:, 4] >= 0)


def _as_launched(table: Ints) -> Ints:
    """A call for each row of work, when it began."""
    nothing = np.zeros(len(table), np.int64)
    launch = nothing + int(Call.LAUNCH)
    return np.column_stack([table[:, 0], table[:, 0], table[:, 4], nothing - 1, launch])


def _peak(stats: Mapping[str, Any]) -> float | None:
    try:
        stated = float(stats.get("peak_teraflops_per_second", 0)) * 1e12
    except (OverflowError, TypeError, ValueError):
        return None
    return stated if 0 < stated < 1e20 else None


def _on_host(path: Path, host: Host, number: int) -> Trace:
    """A device of XLA's that is the host itself."""
    rows = host.operations[number].table()
    steps, steps_from = host.steps()
    if not steps:
        steps, steps_from = host.module_runs(host.modules)
    steps = _with_work(steps, rows[:, 0])
    comm = rows[:, 4] == Work.COMM
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
    host: Host,
    origin: Origin,
    table: Ints,
    calls: Ints,
    steps: Sequence[Step],
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
    nothing = np.zeros(len(operations), np.int8)
    return Trace(
        path=path,
        base=zero / 1000,
        header={"deviceProperties": [{"name": name}], "baseTimeNanoseconds": unix or 0},
        names=[*host.names, ""],
        device=DeviceWork(
            start=table[:, 0] - zero,
            end=table[:, 1] - zero,
            name=table[:, 2].astype(np.int32),
            stream=table[:, 3].astype(np.int32),
            correlation=table[:, 4].copy(),
            work=table[:, 5].astype(np.int8),
            bytes=table[:, 6].copy(),
        ),
        calls=Calls(
            start=calls[:, 0] - zero,
            end=calls[:, 1] - zero,
            correlation=calls[:, 2].copy(),
            thread=calls[:, 3].astype(np.int32),
            call=calls[:, 4].astype(np.int8),
        ),
        marks=Marks(
            start=marks[:, 0] - zero,
            end=marks[:, 1] - zero,
            thread=marks[:, 2].astype(np.int32),
            mark=marks[:, 3].astype(np.int8),
            name=marks[:, 4].astype(np.int32),
        ),
        products=_products(counted, zero, len(host.names)),
        collectives={},
        operators=Marks(
            start=operations[:, 0] - zero,
            end=operations[:, 1] - zero,
            thread=operations[:, 2].astype(np.int32),
            mark=nothing,
            name=operations[:, 3].astype(np.int32),
        ),
        steps=tuple(
            Step(number=step.number, start=step.start - zero, end=step.end - zero) for step in steps
        ),
        events=events,
        left_out=tuple(left_out),
        notes=(_ON_HOST,) * (origin.platform == "cpu") + (_NOT_LAUNCHED,) * (not launched),
        origin=origin,
        needs=NEEDS,
        launched=launched,
    )


def _products(rows: Ints, zero: int, untyped: int) -> Products:
    """Of start, end, thread, name and FLOPs; types are not stated."""
    flops = rows[:, 4].astype(np.float64)
    nothing = np.zeros(len(rows), np.int64)
    return Products(
        start=rows[:, 0] - zero,
        end=rows[:, 1] - zero,
        thread=rows[:, 2].astype(np.int32),
        name=rows[:, 3].astype(np.int32),
        type=(nothing + untyped).astype(np.int32),
        flops=flops,
        full=flops,
        elements=nothing.astype(np.float64),
        scores=nothing,
        shape=(nothing + untyped).astype(np.int32),
    )
