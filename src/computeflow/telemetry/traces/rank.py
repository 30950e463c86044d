"""Measurement of one rank: `measure_trace` keeps what the job's ledger needs of its trace.

The result is small (accounts, collectives, tables of the longest) and travels between processes, so
that a job of many ranks is measured with the memory of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.intervals import EMPTY, Intervals, union
from computeflow.telemetry.traces.backward_passes import (
    early_reductions,
    optimizer_ends,
    pass_ends,
)
from computeflow.telemetry.traces.event_names import MAX_READ, Mark, WorkKind
from computeflow.telemetry.traces.flop_operators import count_products, owners
from computeflow.telemetry.traces.graph_builder import step_graph
from computeflow.telemetry.traces.host_only import with_launches
from computeflow.telemetry.traces.hta import hta_breakdown
from computeflow.telemetry.traces.kernel_precision import precision_hint
from computeflow.telemetry.traces.launches import BEFORE, Launches
from computeflow.telemetry.traces.own_updates import with_own_updates
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
    process_groups,
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
    MeetingKind,
    RankCollectives,
    RankLine,
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
    role = with_own_updates(trace, launches, roles(trace, launches))
    return cut(trace, launches, role, int(edges[0]), int(edges[-1]))


def measure_trace(trace: Trace, options: TraceOptions) -> RankMeasurement:
    on_device = trace.on_device
    hta = hta_breakdown(trace) if on_device and trace.origin.kind == "kineto" else None
    trace, launches = with_launches(trace)
    role = with_own_updates(trace, launches, roles(trace, launches))
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
        graph=step_graph(trace, launches, role, steps) if options.replay else None,
        host_name=plain_text(trace.header.get("host_name"))[:MAX_NAME],
        process_groups=process_groups(trace),
        line=_line(trace, parts, collectives, edges, offset),
        cut_short=trace.cut_short,
        cut_steps=_cut_steps(trace, launches, steps),
    )


def _cut_steps(trace: Trace, launches: Launches, steps: tuple[TraceStep, ...]) -> tuple[int, ...]:
    """Steps that may lack their end: nothing that was launched after them is in the file."""
    if not trace.cut_short:
        return ()
    last = int(launches.start.max())
    return tuple(step.number for step in steps if step.end > last)


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
        last = int(np.searchsorted(trace.operators.start, start, side="right")) - 1
        rows.append(
            GapRow(
                start_seconds=(start - int(edges[0])) / 1e9,
                seconds=length / 1e9,
                account=account,
                cause=cause,
                following=following[:MAX_NAME],
                before=trace.names[trace.operators.name[last]][:MAX_NAME] if last >= 0 else "",
                inside=_inside(trace, start, start + length),
            )
        )
    return tuple(rows)


_MOST = 0.6
"""Share of a gap that lies in an annotation which explains it."""


def _inside(trace: Trace, start: int, end: int) -> str:
    """The shortest annotation or function that holds most of a gap."""
    found: list[tuple[int, str]] = []
    for spans in (trace.annotations, trace.functions):
        near = slice(0, int(np.searchsorted(spans.start, end)))
        both = np.minimum(spans.end[near], end) - np.maximum(spans.start[near], start)
        for row in np.flatnonzero(both >= _MOST * (end - start)):
            length = int(spans.end[row] - spans.start[row])
            found.append((length, trace.names[spans.name[row]][:MAX_NAME]))
    return min(found, default=(0, ""))[1]


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
    meeting = np.zeros(len(chosen), np.int8)
    peer, tag = np.full(len(chosen), -1, np.int32), np.zeros(len(chosen), np.int32)
    for row, event in enumerate(chosen):
        collective = trace.collectives.get(int(device.correlation[event]))
        meeting[row] = _meeting_of(
            trace.names[device.name[event]] if collective is None else collective.name
        )
        if collective is not None:
            peer[row], tag[row] = collective.peer, collective.tag
            elements[row] = min(collective.elements, 2**59)
        if collective is None:
            key, size = f"by name: {trace.names[device.name[event]][:120]}", 0
        elif not (collective.group or collective.ranks):
            key, size = f"by name: {collective.name[:120]}", 0
        else:
            ranks = ",".join(map(str, collective.ranks[:4096]))
            key, size = f"{collective.group} [{ranks}]", len(collective.ranks)
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
            meeting=meeting,
            peer=peer,
            tag=tag,
            early=early_reductions(trace, launches.start[chosen], _reduces(trace, chosen)),
        ),
    )


def _reduces(trace: Trace, rows: Ints) -> NDArray[np.bool_]:
    """Which of these rows of the device are reductions among all ranks of a group."""
    names = np.array([_plain(name) for name in trace.names] or [""])
    found = np.zeros(len(rows), bool)
    for at, row in enumerate(rows.tolist()):
        collective = trace.collectives.get(int(trace.device.correlation[row]))
        plain = names[trace.device.name[row]] if collective is None else _plain(collective.name)
        found[at] = "allreduce" in plain or "reducescatter" in plain
    return found


def _plain(name: str) -> str:
    return name[:MAX_READ].lower().replace("_", "").replace("-", "")


_ALL = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier", "sendrecv")


def _meeting_of(name: str) -> MeetingKind:
    plain = _plain(name)
    if any(known in plain for known in _ALL):
        return MeetingKind.ALL
    if "send" in plain:
        return MeetingKind.SEND
    if "recv" in plain or "receive" in plain:
        return MeetingKind.RECEIVE
    if "broadcast" in plain or "scatter" in plain:
        return MeetingKind.FROM_ONE
    return MeetingKind.TO_ONE if "reduce" in plain or "gather" in plain else MeetingKind.ALL


def _line(
    trace: Trace, parts: WindowAccounts, collectives: RankCollectives, edges: Ints, offset: int
) -> RankLine:
    """The window in pieces between the beginnings and ends of collectives and of waits for them."""
    steps = edges if trace.steps else _unmarked_steps(trace, edges)
    waits = union(
        np.concatenate([part.start for part in (EMPTY, *parts.exposed.values())]),
        np.concatenate([part.end for part in (EMPTY, *parts.exposed.values())]),
    )
    times = (collectives.start - offset, collectives.end - offset, waits.start, waits.end, steps)
    cuts = distinct(np.concatenate(times))
    cuts = cuts[(cuts >= edges[0]) & (cuts <= edges[-1])]
    names = tuple(name for name in parts.accounts if name not in parts.exposed)
    columns = [np.diff(parts.accounts[name].before(cuts)) / 1e9 for name in names]
    seconds = np.stack(columns, axis=1) if columns else np.zeros((max(len(cuts) - 1, 0), 0))
    return RankLine(
        edges=cuts + offset,
        accounts=names,
        seconds=seconds.astype(np.float32),
        waits=Intervals(waits.start + offset, waits.end + offset),
        steps=steps + offset,
    )


def _unmarked_steps(trace: Trace, edges: Ints) -> Ints:
    """Bounds of steps that the profiler does not mark: the ends of the optimizer, else the ends of
    backward passes with what follows them. Ranks that ran the same steps have as many, though the
    first and the last may be of no length: neither counts as a whole step.
    """
    ends = optimizer_ends(trace)
    if len(ends) < 2:
        ends = pass_ends(trace)
    return np.concatenate([edges[:1], np.clip(ends, edges[0], edges[-1]), edges[-1:]])


def _operation_of(name: str) -> int:
    plain = _plain(name)
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
