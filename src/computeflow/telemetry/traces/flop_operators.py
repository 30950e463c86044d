"""Matrix products and other operators with known FLOPs: how many FLOPs, and the kernels behind
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.traces.event_names import WorkKind
from computeflow.telemetry.traces.launches import Launches
from computeflow.telemetry.traces.rank_accounts import (
    ASIDE,
    Roles,
    find_recomputation,
    intervals_of_mark,
)
from computeflow.telemetry.traces.rank_measurements import MAX_ROWS, OperatorRow
from computeflow.telemetry.traces.trace import Ints, Trace, TraceStep, distinct


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTotals:
    flops: float
    full: float
    by_step: tuple[float, ...]
    types: dict[str, float]
    seconds: float
    all_seconds: float
    rows: tuple[OperatorRow, ...]


def count_products(
    trace: Trace,
    launches: Launches,
    role: Roles,
    steps: tuple[TraceStep, ...],
    edges: Ints,
    owner: NDArray[np.int32],
) -> ProductTotals:
    """Total FLOPs of the window's operators, without recomputation, checkpoints and evaluation, and
    the time of their kernels. `owner` is the operator of each row of the device (`owners`).
    """
    products, device = trace.products, trace.device
    again = np.zeros(len(products), bool)
    for thread in distinct(products.thread):
        rows = products.thread == thread
        again[rows] = find_recomputation(trace, int(thread)).contains(products.start[rows])
        for mark in ASIDE.values():
            again[rows] |= intervals_of_mark(trace, mark, int(thread)).contains(
                products.start[rows]
            )
    # an operator belongs to the step on the host in which it started
    hosts = np.array([step.start for step in steps] + [steps[-1].end], np.int64) if steps else edges
    step = np.searchsorted(hosts, products.start, side="right") - 1
    inside = (step >= 0) & (step < len(hosts) - 1)
    if not steps:
        inside[:] = True
        step = np.zeros(len(products), np.int64)
    counted = inside & ~again
    busy = (device.work == WorkKind.COMPUTE) | (device.work == WorkKind.MEMORY)
    busy &= (device.start >= edges[0]) & (device.start < edges[-1])
    busy &= ~role.optimizer & role.step
    seconds = (device.end - device.start) / 1e9
    owned = busy & (owner >= 0)
    by_product: NDArray[np.float64]
    if (launches.call < 0).all():  # the host itself computes
        by_product = (products.end - products.start) / 1e9
    else:
        weights = seconds[owned]
        by_product = np.bincount(owner[owned], weights, len(products)).astype(np.float64)
    table = []
    for name in distinct(products.name[inside]):
        rows = inside & (products.name == name)
        kind = np.bincount(products.type[rows]).argmax() if rows.any() else 0
        table.append(
            OperatorRow(
                name=trace.names[name],
                count=int(rows.sum()),
                seconds=float(by_product[rows].sum()),
                flops=float(products.flops[rows].sum()),
                elements=float(products.elements[rows].sum()),
                type=trace.names[kind],
            )
        )
    table.sort(key=lambda row: -row.seconds)
    types = {
        trace.names[kind]: float(products.flops[counted & (products.type == kind)].sum())
        for kind in distinct(products.type[counted])
    }
    by_step = np.bincount(step[counted], weights=products.flops[counted], minlength=len(hosts) - 1)
    return ProductTotals(
        flops=float(products.flops[counted].sum()),
        full=float(products.full[counted].sum()),
        by_step=tuple(by_step.tolist()),
        types=types,
        seconds=float(by_product[inside].sum()),
        all_seconds=float(seconds[busy].sum()),
        rows=tuple(table[:MAX_ROWS]),
    )


def owners(trace: Trace, launches: Launches) -> NDArray[np.int32]:
    """The operator with known FLOPs that launched each row of the device; -1 for the others."""
    products = trace.products
    owner = np.full(len(trace.device), -1, np.int32)
    for thread in distinct(products.thread):
        own = np.flatnonzero(products.thread == thread)
        rows = np.flatnonzero(launches.thread == thread)
        if not len(rows):
            continue
        at = np.searchsorted(products.start[own], launches.start[rows], side="right") - 1
        inside = (at >= 0) & (launches.start[rows] < products.end[own[np.maximum(at, 0)]])
        owner[rows[inside]] = own[at[inside]]
    return owner
