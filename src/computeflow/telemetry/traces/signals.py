"""Signals for the rules beyond the accounts: `find_signals` of one rank.

Small values that travel with `RankMeasurement`. A signal that a trace does not have is empty, never
zero: `RankMeasurement.missing` says what to record.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.intervals import EMPTY, union
from computeflow.telemetry.traces.event_names import ALLOCATOR, Call, Mark, WorkKind
from computeflow.telemetry.traces.host_delays import find_host_delays, loading, pageable_rows
from computeflow.telemetry.traces.kernel_roles import single_tensor_optimizer_rows
from computeflow.telemetry.traces.launches import Launches
from computeflow.telemetry.traces.rank_accounts import (
    Roles,
    WindowAccounts,
    find_recomputation,
    intervals_of_mark,
)
from computeflow.telemetry.traces.rank_measurements import ShapeRow, Signals
from computeflow.telemetry.traces.trace import Ints, Trace, TraceStep, distinct

_MAX_SHAPES = 400


def find_signals(
    trace: Trace,
    launches: Launches,
    role: Roles,
    parts: WindowAccounts,
    steps: tuple[TraceStep, ...],
    edges: Ints,
    owner: NDArray[np.int32],
) -> Signals:
    device = trace.device
    inside = (device.start >= edges[0]) & (device.start < edges[-1])
    delays = find_host_delays(trace, launches, role, parts)
    pageable = pageable_rows(trace) & inside
    busy = (
        inside & role.step & ((device.work == WorkKind.COMPUTE) | (device.work == WorkKind.MEMORY))
    )
    collects = trace.marks.mark == Mark.COLLECT
    collects &= (trace.marks.start >= edges[0]) & (trace.marks.start < edges[-1])
    seconds = (device.end - device.start) / 1e9
    updates = busy & role.optimizer
    single = updates & single_tensor_optimizer_rows(trace, launches, role)
    plain = busy & ~role.optimizer & (owner < 0)
    written = plain & _named(trace, ("triton",))
    allocating = np.isin(trace.calls.call, ALLOCATOR)
    allocating &= (trace.calls.start >= edges[0]) & (trace.calls.start < edges[-1])
    return Signals(
        setbacks=delays.seconds,
        loading=loading(trace, parts),
        reads=_reads(trace, edges),
        collections=int(collects.sum()),
        collection_seconds=union(trace.marks.start[collects], trace.marks.end[collects]).total
        / 1e9,
        pageable_seconds=delays.pageable.total / 1e9,
        pageable_bytes=float(np.maximum(device.bytes[pageable], 0).sum()),
        pageable_count=int(pageable.sum()),
        shapes=_shapes(trace, role, steps, edges, owner, busy, seconds),
        loss_seconds=_loss(trace, launches, busy & (owner < 0), seconds),
        unfused_attention=_unfused_attention_seconds(
            trace, launches, busy & ~role.optimizer & ~role.recompute, seconds
        ),
        optimizer_kernels=int(updates.sum()),
        optimizer_queued=_queued_before(trace, parts, role.optimizer),
        optimizer_single=float(seconds[single].sum()),
        kernels=int(busy.sum()),
        compiled=float(seconds[written].sum() / (seconds[plain].sum() or 1.0)),
        allocations=int(allocating.sum()),
    )


def _named(trace: Trace, parts: tuple[str, ...]) -> NDArray[np.bool_]:
    """Rows of the device whose name contains one of these texts."""
    rows = np.array([any(part in name for part in parts) for name in trace.names] or [False])
    return np.asarray(rows[trace.device.name])


def _queued_before(trace: Trace, parts: WindowAccounts, rows: NDArray[np.bool_]) -> float:
    """Seconds of the device's own latency before these rows."""
    queued = parts.host.get("queued", EMPTY)
    following = np.searchsorted(trace.device.start, queued.end, side="left")
    mine = rows[np.minimum(following, len(rows) - 1)] if len(rows) else np.zeros(0, bool)
    return float((queued.end - queued.start)[mine].sum() / 1e9)


def _reads(trace: Trace, edges: Ints) -> dict[str, int]:
    """Number of times that each operator made the host wait for the device."""
    marks, calls = trace.marks, trace.calls
    rows = np.flatnonzero(marks.mark == Mark.READ)
    waits = calls.start[(calls.call == Call.SYNC) & (calls.start >= edges[0])]
    waits = np.sort(waits[waits < edges[-1]])
    first = np.searchsorted(waits, marks.start[rows])
    waited = np.searchsorted(waits, marks.end[rows]) > first
    names, counts = np.unique(marks.name[rows[waited]], return_counts=True)
    counted = {trace.names[name]: int(count) for name, count in zip(names, counts, strict=True)}
    others = len(waits) - sum(counted.values())
    return counted | ({"": others} if others > 0 else {})


def _shapes(
    trace: Trace,
    role: Roles,
    steps: tuple[TraceStep, ...],
    edges: Ints,
    owner: NDArray[np.int32],
    busy: NDArray[np.bool_],
    seconds: NDArray[np.float64],
) -> tuple[ShapeRow, ...]:
    products = trace.products
    if not len(products):
        return ()
    hosts = (steps[0].start, steps[-1].end) if steps else (int(edges[0]), int(edges[-1]))
    inside = (products.start >= hosts[0]) & (products.start < hosts[1])
    phase = _phases(trace)
    owned = busy & (owner >= 0)
    taken = np.bincount(owner[owned], weights=seconds[owned], minlength=len(products))
    keys = np.stack([products.name, products.shape, products.type, phase])[:, inside]
    kinds, kind = np.unique(keys, axis=1, return_inverse=True)
    kind = kind.ravel()
    counts = np.bincount(kind, minlength=kinds.shape[1])
    flops = np.bincount(kind, weights=products.flops[inside], minlength=kinds.shape[1])
    times = np.bincount(kind, weights=taken[inside], minlength=kinds.shape[1])
    return tuple(
        ShapeRow(
            name=trace.names[kinds[0, row]],
            shape=trace.names[kinds[1, row]],
            type=trace.names[kinds[2, row]],
            phase=PHASES[int(kinds[3, row])],
            count=int(counts[row]),
            seconds=float(times[row]),
            flops=float(flops[row]),
        )
        for row in np.argsort(-flops, kind="stable")[:_MAX_SHAPES]
    )


PHASES = ("forward", "backward", "recompute")


def _phases(trace: Trace) -> NDArray[np.int32]:
    products = trace.products
    phase = np.zeros(len(products), np.int32)
    for thread in distinct(products.thread):
        rows = products.thread == thread
        start = products.start[rows]
        back = intervals_of_mark(trace, Mark.BACKWARD, int(thread)).contains(start)
        again = find_recomputation(trace, int(thread)).contains(start)
        phase[rows] = np.where(again, 2, np.where(back, 1, 0))
    return phase


def _loss(
    trace: Trace, launches: Launches, busy: NDArray[np.bool_], seconds: NDArray[np.float64]
) -> float:
    """Time of kernels launched between the forward and the backward pass that belong to no matrix
    product.
    """
    products, phase = trace.products, _phases(trace)
    turns = np.flatnonzero((phase[:-1] == 0) & (phase[1:] == 1))
    if not len(turns):
        return 0.0
    spans = union(products.end[turns], products.start[turns + 1])
    return float(seconds[busy][spans.contains(launches.start[busy])].sum())


def _unfused_attention_seconds(
    trace: Trace, launches: Launches, busy: NDArray[np.bool_], seconds: NDArray[np.float64]
) -> float:
    """Time of kernels launched from one score product to the next of the same size, both included.

    Between the two products of one attention there is only work on its scores; a product of another
    kind between them separates one attention from the next.
    """
    products = trace.products
    total = 0.0
    for thread in distinct(products.thread):
        rows = np.flatnonzero(products.thread == thread)
        scores = products.scores[rows]
        same = np.flatnonzero((scores[1:] > 0) & (scores[1:] == scores[:-1]))
        if not len(same):
            continue
        spans = union(products.start[rows[same]], products.end[rows[same + 1]])
        mine = busy & (launches.thread == thread)
        total += float(seconds[mine][spans.contains(launches.start[mine])].sum())
    return total
