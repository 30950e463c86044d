"""One GPU of an export, measured by the accounting of Kineto traces."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from computeflow.telemetry.intervals import EMPTY, Intervals, union
from computeflow.telemetry.nsys.facts import CopyRow
from computeflow.telemetry.nsys.trace import Read
from computeflow.telemetry.traces.identity import clock_of
from computeflow.telemetry.traces.measured import Options, RankMeasured
from computeflow.telemetry.traces.names import Mark, Work
from computeflow.telemetry.traces.rank import measure_trace
from computeflow.telemetry.traces.trace import Ints, Trace

_RANGES = {
    Mark.INPUT: ("input", "data_load"),
    Mark.CHECKPOINT: ("checkpoint", "checkpoint"),
    Mark.EVALUATION: ("evaluation", "evaluation"),
    Mark.OPTIMIZER: ("optimizer", "optimizer_step"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    rank: RankMeasured
    busy_seconds: float
    comm_seconds: float
    comm_hidden_seconds: float
    copy_seconds: float
    copy_hidden_seconds: float
    copies: tuple[CopyRow, ...]


def measure(read: Read, number: int, number_from: str) -> Measured:
    """As a Kineto trace is; there are no operators' shapes in an export."""
    trace = read.trace
    rank = replace(
        measure_trace(trace, Options()), rank=number, rank_from=number_from, world=None, hta=None,
        missing=_missing(trace),
    )  # fmt: skip
    offset = clock_of(trace)
    edges = np.array([rank.window_start - offset, rank.window_end - offset], np.int64)
    works = {work: _ran(trace, edges, work) for work in (Work.COMM, Work.COPY)}
    computing = _ran(trace, edges, Work.COMPUTE, Work.MEMORY)
    return Measured(
        rank=rank,
        busy_seconds=_ran(trace, edges, *Work).total / 1e9,
        comm_seconds=works[Work.COMM].total / 1e9,
        comm_hidden_seconds=works[Work.COMM].both(computing).total / 1e9,
        copy_seconds=works[Work.COPY].total / 1e9,
        copy_hidden_seconds=works[Work.COPY].both(computing).total / 1e9,
        copies=_copies(trace, edges),
    )


def _ran(trace: Trace, edges: Ints, *works: Work) -> Intervals:
    rows = np.isin(trace.device.work, np.array(works, np.int8))
    if not rows.any():
        return EMPTY
    some = union(trace.device.start[rows], trace.device.end[rows])
    return some.clipped(int(edges[0]), int(edges[-1]))


def _copies(trace: Trace, edges: Ints) -> tuple[CopyRow, ...]:
    """By name, those that began in the window."""
    device = trace.device
    moved = np.array([name.startswith("Memcpy ") for name in trace.names], bool)[device.name]
    moved &= (device.start >= edges[0]) & (device.start < edges[-1])
    rows = []
    for number in np.unique(device.name[moved]).tolist():
        some = moved & (device.name == number)
        rows.append(
            CopyRow(
                what=trace.names[number].removeprefix("Memcpy "), count=int(some.sum()),
                bytes=int(np.maximum(device.bytes[some], 0).sum()),
                seconds=float((device.end[some] - device.start[some]).sum()) / 1e9,
            )
        )  # fmt: skip
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _missing(trace: Trace) -> dict[str, str]:
    """Accounts that an export without the right ranges cannot tell apart."""
    found = {
        "compute.model": "FLOPs: an Nsight export has no shapes of operators",
        "compute.clock": "readings of the device's clock",
    }
    if not (trace.marks.mark == Mark.BACKWARD).any():
        found["compute.recompute"] = "ranges of autograd (torch.autograd.profiler.emit_nvtx)"
    for mark, (account, name) in _RANGES.items():
        if not (trace.marks.mark == mark).any():
            found[account] = f"an NVTX range: {name}"
    if not len(trace.calls):
        found["host"] = "CUDA API calls (nsys profile --trace=cuda)"
    return found
