"""Measurement of one rank: `measure_trace` keeps what the job's ledger needs of its trace.

The result is small (accounts, collectives, tables of the longest) and travels between processes, so
that a job of many ranks is measured with the memory of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from computeflow.telemetry.intervals import Intervals, union
from computeflow.telemetry.traces.event_names import Mark, WorkKind
from computeflow.telemetry.traces.flop_operators import count_products, owners, precision_hint
from computeflow.telemetry.traces.host_only import with_launches
from computeflow.telemetry.traces.hta import hta_breakdown
from computeflow.telemetry.traces.launches import BEFORE, Launches
from computeflow.telemetry.traces.process_groups import group_accounts
from computeflow.telemetry.traces.rank_accounts import (
    Roles,
    WindowAccounts,
    cut,
    queue_depth,
    roles,
    seconds_by_step,
)
from computeflow.telemetry.traces.rank_identity import (
    clock_of,
    device_name,
    plain_text,
    rank_of,
    world_of,
)
from computeflow.telemetry.traces.rank_measurements import (
    ELEMENT_BYTES,
    MAX_NAME,
    MAX_ROWS,
    OPERATIONS,
    CopyRow,
    DeviceActivity,
    GapRow,
    KernelRow,
    RankCollectives,
    RankMeasurement,
    TraceOptions,
)
from computeflow.telemetry.traces.signals import find_signals
from computeflow.telemetry.traces.trace import Ints, Trace, TraceStep, distinct
from computeflow.telemetry.traces.windows import find_window


def cut_rank(trace: Trace, options: TraceOptions) -> WindowAccounts:
    """Split a trace's window into accounts, as sets of time."""
    trace, launches = with_launches(trace)
    _, edges, _ = find_window(trace, launches, options)
    return cut(trace, launches, roles(trace, launches), int(edges[0]), int(edges[-1]))


def measure_trace(trace: Trace, options: TraceOptions) -> RankMeasurement:
    on_device = trace.on_device
    hta = hta_breakdown(trace) if on_device and trace.origin.kind == "kineto" else None
    trace, launches = with_launches(trace)
    role = roles(trace, launches)
    steps, edges, notes = find_window(trace, launches, options)
    parts = cut(trace, launches, role, int(edges[0]), int(edges[-1]))
    rank, rank_from = rank_of(trace, options)
    owner = owners(trace, launches)
    products = count_products(trace, launches, role, steps, edges, owner)
    offset = clock_of(trace)
    names, groups, sizes, collectives = _collectives(trace, launches, role, steps, offset)
    return RankMeasurement(
        source=str(trace.path),
        rank=rank,
        rank_from=rank_from,
        world=world_of(trace),
        device=device_name(trace) if on_device else "",
        on_device=on_device,
        steps=tuple(step.number for step in steps),
        step_seconds=tuple((np.diff(edges) / 1e9).tolist()),
        window_start=int(edges[0]) + offset,
        window_end=int(edges[-1]) + offset,
        accounts=_seconds(parts.accounts),
        by_step={
            name: tuple(values.tolist())
            for name, values in seconds_by_step(parts.accounts, edges).items()
            if values.any()
        },
        host=_seconds(parts.host),
        flops=products.flops,
        flops_full=products.full,
        flops_by_step=products.by_step,
        types=products.types,
        precision_hint=precision_hint(trace),
        product_seconds=products.seconds,
        kernel_seconds=products.all_seconds,
        kernels=_kernel_rows(trace, edges),
        operators=products.rows,
        gaps=_gap_rows(trace, parts, edges),
        **_queue(trace, launches, on_device=on_device),
        groups=groups,
        group_sizes=sizes,
        account_names=names,
        collectives=collectives,
        exposed={
            name: Intervals(intervals.start + offset, intervals.end + offset)
            for name, intervals in parts.exposed.items()
        },
        hta=hta,
        missing=_missing(trace, products.flops, on_device=on_device),
        left_out=trace.left_out,
        signals=find_signals(trace, launches, role, parts, steps, edges, owner),
        trace_id=plain_text(trace.header.get("trace_id")),
        events=trace.events,
        notes=(*trace.notes, *notes),
        activity=_activity(trace, edges),
        origin=trace.origin,
        counters=trace.counters,
    )


def _seconds(parts: Mapping[str, Intervals]) -> dict[str, float]:
    return {name: intervals.total / 1e9 for name, intervals in parts.items() if intervals.total}


def _queue(trace: Trace, launches: Launches, *, on_device: bool) -> dict[str, Any]:
    """Length of the device's queue at each launch; zeros where launches are unknown."""
    depth = queue_depth(trace, launches)[launches.start > BEFORE]
    if not (on_device and trace.launched and len(depth)):
        return {"queue_mean": 0.0, "queue_most": 0, "queue_empty": 0.0}
    return {
        "queue_mean": float(depth.mean()),
        "queue_most": int(depth.max()),
        "queue_empty": float((depth <= 0).mean()),
    }


_WORKS = {
    WorkKind.COMPUTE: "compute",
    WorkKind.MEMORY: "memory",
    WorkKind.COPY: "copy",
    WorkKind.COMM: "comm",
}


def _kernel_rows(trace: Trace, edges: Ints) -> tuple[KernelRow, ...]:
    device = trace.device
    inside = (device.start >= edges[0]) & (device.start < edges[-1])
    name = device.name[inside]
    seconds = (device.end[inside] - device.start[inside]) / 1e9
    total = np.bincount(name, weights=seconds, minlength=len(trace.names))
    count = np.bincount(name, minlength=len(trace.names))
    whole = seconds.sum() or 1.0
    work = np.zeros(len(trace.names), np.int8)
    work[name] = device.work[inside]
    return tuple(
        KernelRow(
            name=trace.names[row][:MAX_NAME],
            work=_WORKS[WorkKind(int(work[row]))],
            count=int(count[row]),
            seconds=float(total[row]),
            share=float(total[row] / whole),
        )
        for row in np.argsort(-total, kind="stable")[:MAX_ROWS]
        if count[row]
    )


def _gap_rows(trace: Trace, parts: WindowAccounts, edges: Ints) -> tuple[GapRow, ...]:
    """The longest intervals of idle time, each with its cause."""
    gaps = []
    causes = [("host", cause, intervals) for cause, intervals in parts.host.items()]
    idle = ("checkpoint", "evaluation", "input", "unexplained")
    causes += [(name, "", parts.accounts[name]) for name in idle if name in parts.accounts]
    for account, cause, intervals in causes:
        for row in np.argsort(intervals.start - intervals.end, kind="stable")[:MAX_ROWS]:
            gaps.append(
                (
                    int(intervals.end[row] - intervals.start[row]),
                    int(intervals.start[row]),
                    account,
                    cause,
                )
            )
    gaps.sort(key=lambda gap: (-gap[0], gap[1]))
    rows = []
    for length, start, account, cause in gaps[:MAX_ROWS]:
        after = int(np.searchsorted(trace.device.start, start + length, side="left"))
        following = trace.names[trace.device.name[after]] if after < len(trace.device) else ""
        rows.append(
            GapRow(
                start_seconds=(start - int(edges[0])) / 1e9,
                seconds=length / 1e9,
                account=account,
                cause=cause,
                following=following[:MAX_NAME],
            )
        )
    return tuple(rows)


def _collectives(
    trace: Trace, launches: Launches, role: Roles, steps: tuple[TraceStep, ...], offset: int
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...], RankCollectives]:
    """Account names, group names and sizes, and the collectives of the steps."""
    device = trace.device
    accounts = group_accounts(trace, role.backward)
    names = tuple(accounts)
    account = np.full(len(device), -1, np.int32)
    for code, rows in enumerate(accounts.values()):
        account[rows] = code
    chosen = np.flatnonzero(account >= 0)
    hosts = np.array([step.start for step in steps], np.int64)
    numbers = np.array([step.number for step in steps] or [-1], np.int32)
    at = np.searchsorted(hosts, launches.start[chosen], side="right") - 1
    step = np.where(at >= 0, numbers[np.maximum(at, 0)], -1).astype(np.int32)
    if steps:
        ended = launches.start[chosen] >= steps[-1].end
        keep = (step >= 0) & ~ended
        chosen, step = chosen[keep], step[keep]
    groups: dict[str, int] = {}
    sizes: list[int] = []
    group = np.empty(len(chosen), np.int32)
    elements, sizes_bytes = np.zeros((2, len(chosen)), np.int64)
    operation = np.full(len(chosen), -1, np.int8)
    for row, event in enumerate(chosen):
        collective = trace.collectives.get(int(device.correlation[event]))
        if collective is None:
            key, size = f"by name: {trace.names[device.name[event]][:120]}", 0
        else:
            ranks = ",".join(map(str, collective.ranks[:4096]))
            key, size = f"{collective.group} [{ranks}]", len(collective.ranks)
            elements[row] = min(collective.elements, 2**59)
            sizes_bytes[row] = elements[row] * ELEMENT_BYTES.get(collective.dtype.lower(), 0)
            operation[row] = _operation_of(collective.name)
        if key not in groups:
            groups[key] = len(groups)
            sizes.append(size)
        group[row] = groups[key]
    return (
        names,
        tuple(groups),
        tuple(sizes),
        RankCollectives(
            start=device.start[chosen] + offset,
            end=device.end[chosen] + offset,
            group=group,
            account=account[chosen],
            step=step,
            elements=elements,
            bytes=sizes_bytes,
            operation=operation,
        ),
    )


def _operation_of(name: str) -> int:
    plain = name.lower().replace("_", "").replace("-", "")
    for index, known in enumerate(OPERATIONS):
        if known.replace("-", "") in plain:
            return index
    return -1


_MARKS = {
    "compute.recompute": Mark.BACKWARD,
    "input": Mark.INPUT,
    "checkpoint": Mark.CHECKPOINT,
    "evaluation": Mark.EVALUATION,
    "optimizer": Mark.OPTIMIZER,
}
"""Marks that tell these accounts apart."""


def _missing(trace: Trace, flops: float, *, on_device: bool) -> dict[str, str]:
    there = {account for account, mark in _MARKS.items() if (trace.marks.mark == mark).any()}
    if flops:
        there.add("compute.model")
    if not on_device or (trace.launched and len(trace.calls)):
        there.add("host")
    return {account: signal for account, signal in trace.needs.items() if account not in there}


def _activity(trace: Trace, edges: Ints) -> DeviceActivity:
    ran = {work: _ran(trace, edges, work) for work in (WorkKind.COMM, WorkKind.COPY)}
    computing = _ran(trace, edges, WorkKind.COMPUTE, WorkKind.MEMORY)
    return DeviceActivity(
        busy_seconds=_ran(trace, edges, *WorkKind).total / 1e9,
        comm_seconds=ran[WorkKind.COMM].total / 1e9,
        comm_hidden_seconds=ran[WorkKind.COMM].both(computing).total / 1e9,
        copy_seconds=ran[WorkKind.COPY].total / 1e9,
        copy_hidden_seconds=ran[WorkKind.COPY].both(computing).total / 1e9,
        copies=_copy_rows(trace, edges),
    )


def _ran(trace: Trace, edges: Ints, *works: WorkKind) -> Intervals:
    rows = np.isin(trace.device.work, np.array(works, np.int8))
    intervals = union(trace.device.start[rows], trace.device.end[rows])
    return intervals.clipped(int(edges[0]), int(edges[-1]))


def _copy_rows(trace: Trace, edges: Ints) -> tuple[CopyRow, ...]:
    """Copies that began in the window, by name."""
    device = trace.device
    named = np.array([name.startswith("Memcpy") for name in trace.names] or [False])
    moved = (named[device.name] | (device.work == WorkKind.COPY)) & (device.work != WorkKind.COMM)
    moved &= (device.start >= edges[0]) & (device.start < edges[-1])
    rows = []
    for number in distinct(device.name[moved]).tolist():
        chosen = moved & (device.name == number)
        rows.append(
            CopyRow(
                what=trace.names[number][:MAX_NAME].removeprefix("Memcpy").strip(),
                count=int(chosen.sum()),
                bytes=int(np.maximum(device.bytes[chosen], 0).sum()),
                seconds=float((device.end[chosen] - device.start[chosen]).sum()) / 1e9,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.seconds)[:MAX_ROWS])
