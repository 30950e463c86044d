"""One rank of a job, measured: `measure_trace` keeps what the job's ledger needs of its trace.

The result is small (accounts, collectives, tables of the longest) and travels between processes, so
that a job of many ranks is measured with the memory of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from computeflow.telemetry.intervals import Intervals, union
from computeflow.telemetry.traces.accounts import (
    Cut,
    Roles,
    cut,
    queue_depth,
    roles,
    seconds_by_step,
)
from computeflow.telemetry.traces.groups import group_accounts
from computeflow.telemetry.traces.hosts import with_launches
from computeflow.telemetry.traces.hta import hta_breakdown
from computeflow.telemetry.traces.identity import (
    clock_of,
    device_name,
    plain_text,
    rank_of,
    world_of,
)
from computeflow.telemetry.traces.launches import BEFORE, Launches
from computeflow.telemetry.traces.measured import (
    ELEMENT_BYTES,
    MOST_NAME,
    MOST_ROWS,
    OPERATIONS,
    Activity,
    Collectives,
    CopyRow,
    GapRow,
    KernelRow,
    Options,
    RankMeasured,
)
from computeflow.telemetry.traces.names import Mark, Work
from computeflow.telemetry.traces.products import count_products, owners, precision_hint
from computeflow.telemetry.traces.signals import find_signals
from computeflow.telemetry.traces.trace import Ints, Step, Trace, distinct
from computeflow.telemetry.traces.windows import find_window


def cut_rank(trace: Trace, options: Options) -> Cut:
    """The accounts of a trace as sets of time."""
    trace, made = with_launches(trace)
    _, edges, _ = find_window(trace, made, options)
    return cut(trace, made, roles(trace, made), int(edges[0]), int(edges[-1]))


def measure_trace(trace: Trace, options: Options) -> RankMeasured:
    on_device = trace.on_device
    hta = hta_breakdown(trace) if on_device and trace.origin.kind == "kineto" else None
    trace, made = with_launches(trace)
    role = roles(trace, made)
    steps, edges, notes = find_window(trace, made, options)
    parts = cut(trace, made, role, int(edges[0]), int(edges[-1]))
    rank, rank_from = rank_of(trace, options)
    owner = owners(trace, made)
    products = count_products(trace, made, role, steps, edges, owner)
    offset = clock_of(trace)
    names, groups, sizes, collectives = _collectives(trace, made, role, steps, offset)
    return RankMeasured(
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
        **_queue(trace, made, on_device=on_device),
        groups=groups,
        group_sizes=sizes,
        account_names=names,
        collectives=collectives,
        exposed={
            name: Intervals(some.start + offset, some.end + offset)
            for name, some in parts.exposed.items()
        },
        hta=hta,
        missing=_missing(trace, products.flops, on_device=on_device),
        left_out=trace.left_out,
        signals=find_signals(trace, made, role, parts, steps, edges, owner),
        trace_id=plain_text(trace.header.get("trace_id")),
        events=trace.events,
        notes=(*trace.notes, *notes),
        activity=_activity(trace, edges),
        origin=trace.origin,
        counters=trace.counters,
    )


def _seconds(parts: Mapping[str, Intervals]) -> dict[str, float]:
    return {name: some.total / 1e9 for name, some in parts.items() if some.total}


def _queue(trace: Trace, made: Launches, *, on_device: bool) -> dict[str, Any]:
    """What waited on the device at each launch; nothing where launches are not known."""
    depth = queue_depth(trace, made)[made.start > BEFORE]
    if not (on_device and trace.launched and len(depth)):
        return {"queue_mean": 0.0, "queue_most": 0, "queue_empty": 0.0}
    return {
        "queue_mean": float(depth.mean()),
        "queue_most": int(depth.max()),
        "queue_empty": float((depth <= 0).mean()),
    }


_WORKS = {Work.COMPUTE: "compute", Work.MEMORY: "memory", Work.COPY: "copy", Work.COMM: "comm"}


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
            name=trace.names[row][:MOST_NAME],
            work=_WORKS[Work(int(work[row]))],
            count=int(count[row]),
            seconds=float(total[row]),
            share=float(total[row] / whole),
        )
        for row in np.argsort(-total, kind="stable")[:MOST_ROWS]
        if count[row]
    )


def _gap_rows(trace: Trace, parts: Cut, edges: Ints) -> tuple[GapRow, ...]:
    """The longest stretches of idle time, each with its cause."""
    found = []
    causes = [("host", cause, some) for cause, some in parts.host.items()]
    idle = ("checkpoint", "evaluation", "input", "unexplained")
    causes += [(name, "", parts.accounts[name]) for name in idle if name in parts.accounts]
    for account, cause, some in causes:
        for row in np.argsort(some.start - some.end, kind="stable")[:MOST_ROWS]:
            found.append(
                (int(some.end[row] - some.start[row]), int(some.start[row]), account, cause)
            )
    found.sort(key=lambda gap: (-gap[0], gap[1]))
    rows = []
    for length, start, account, cause in found[:MOST_ROWS]:
        after = int(np.searchsorted(trace.device.start, start + length, side="left"))
        following = trace.names[trace.device.name[after]] if after < len(trace.device) else ""
        rows.append(
            GapRow(
                start_seconds=(start - int(edges[0])) / 1e9,
                seconds=length / 1e9,
                account=account,
                cause=cause,
                following=following[:MOST_NAME],
            )
        )
    return tuple(rows)


def _collectives(
    trace: Trace, made: Launches, role: Roles, steps: tuple[Step, ...], offset: int
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...], Collectives]:
    """Account names, group names and sizes, and the communication of the steps."""
    device = trace.device
    accounts = group_accounts(trace, role.backward)
    names = tuple(accounts)
    account = np.full(len(device), -1, np.int32)
    for code, rows in enumerate(accounts.values()):
        account[rows] = code
    chosen = np.flatnonzero(account >= 0)
    hosts = np.array([step.start for step in steps], np.int64)
    numbers = np.array([step.number for step in steps] or [-1], np.int32)
    at = np.searchsorted(hosts, made.start[chosen], side="right") - 1
    step = np.where(at >= 0, numbers[np.maximum(at, 0)], -1).astype(np.int32)
    if steps:
        ended = made.start[chosen] >= steps[-1].end
        keep = (step >= 0) & ~ended
        chosen, step = chosen[keep], step[keep]
    groups: dict[str, int] = {}
    sizes: list[int] = []
    group = np.empty(len(chosen), np.int32)
    elements, sizes_bytes = np.zeros((2, len(chosen)), np.int64)
    operation = np.full(len(chosen), -1, np.int8)
    for row, event in enumerate(chosen):
        said = trace.collectives.get(int(device.correlation[event]))
        if said is None:
            key, size = f"by name: {trace.names[device.name[event]][:120]}", 0
        else:
            ranks = ",".join(map(str, said.ranks[:4096]))
            key, size = f"{said.group} [{ranks}]", len(said.ranks)
            elements[row] = min(said.elements, 2**59)
            sizes_bytes[row] = elements[row] * ELEMENT_BYTES.get(said.dtype.lower(), 0)
            operation[row] = _operation_of(said.name)
        if key not in groups:
            groups[key] = len(groups)
            sizes.append(size)
        group[row] = groups[key]
    return (
        names,
        tuple(groups),
        tuple(sizes),
        Collectives(
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
    for place, known in enumerate(OPERATIONS):
        if known.replace("-", "") in plain:
            return place
    return -1


_MARKS = {
    "compute.recompute": Mark.BACKWARD,
    "input": Mark.INPUT,
    "checkpoint": Mark.CHECKPOINT,
    "evaluation": Mark.EVALUATION,
    "optimizer": Mark.OPTIMIZER,
}
"""What tells these accounts apart."""


def _missing(trace: Trace, flops: float, *, on_device: bool) -> dict[str, str]:
    there = {account for account, mark in _MARKS.items() if (trace.marks.mark == mark).any()}
    if flops:
        there.add("compute.model")
    if not on_device or (trace.launched and len(trace.calls)):
        there.add("host")
    return {account: signal for account, signal in trace.needs.items() if account not in there}


def _activity(trace: Trace, edges: Ints) -> Activity:
    ran = {work: _ran(trace, edges, work) for work in (Work.COMM, Work.COPY)}
    computing = _ran(trace, edges, Work.COMPUTE, Work.MEMORY)
    return Activity(
        busy_seconds=_ran(trace, edges, *Work).total / 1e9,
        comm_seconds=ran[Work.COMM].total / 1e9,
        comm_hidden_seconds=ran[Work.COMM].both(computing).total / 1e9,
        copy_seconds=ran[Work.COPY].total / 1e9,
        copy_hidden_seconds=ran[Work.COPY].both(computing).total / 1e9,
        copies=_copy_rows(trace, edges),
    )


def _ran(trace: Trace, edges: Ints, *works: Work) -> Intervals:
    rows = np.isin(trace.device.work, np.array(works, np.int8))
    some = union(trace.device.start[rows], trace.device.end[rows])
    return some.clipped(int(edges[0]), int(edges[-1]))


def _copy_rows(trace: Trace, edges: Ints) -> tuple[CopyRow, ...]:
    """By name, those that began in the window."""
    device = trace.device
    named = np.array([name.startswith("Memcpy") for name in trace.names] or [False])
    moved = (named[device.name] | (device.work == Work.COPY)) & (device.work != Work.COMM)
    moved &= (device.start >= edges[0]) & (device.start < edges[-1])
    rows = []
    for number in distinct(device.name[moved]).tolist():
        some = moved & (device.name == number)
        rows.append(
            CopyRow(
                what=trace.names[number][:MOST_NAME].removeprefix("Memcpy").strip(),
                count=int(some.sum()),
                bytes=int(np.maximum(device.bytes[some], 0).sum()),
                seconds=float((device.end[some] - device.start[some]).sum()) / 1e9,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.seconds)[:MOST_ROWS])
