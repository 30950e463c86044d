"""One device of a profile, measured by the accounting of Kineto traces."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from computeflow.telemetry.intervals import EMPTY, Intervals, union
from computeflow.telemetry.traces.hosts import host_as_device
from computeflow.telemetry.traces.identity import clock_of
from computeflow.telemetry.traces.measured import Options, RankMeasured
from computeflow.telemetry.traces.names import Mark, Work
from computeflow.telemetry.traces.rank import measure_trace
from computeflow.telemetry.traces.trace import DeviceWork
from computeflow.telemetry.xplane.trace import About, Read

_ANNOTATED = {
    Mark.INPUT: ("input", "data_load"),
    Mark.CHECKPOINT: ("checkpoint", "checkpoint"),
    Mark.EVALUATION: ("evaluation", "evaluation"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    rank: RankMeasured
    about: About
    busy_seconds: float
    comm_seconds: float
    comm_hidden_seconds: float


def measure(read: Read) -> Measured:
    trace = read.trace
    rank = replace(measure_trace(trace, Options()), world=None, hta=None, missing=_missing(read))
    if not read.about.launched:
        rank = _unexplained(rank)
    offset = clock_of(trace)
    start, end = rank.window_start - offset, rank.window_end - offset
    device = trace.device if trace.on_device else host_as_device(trace)[0].device
    comm = _ran(device, start, end, Work.COMM)
    computing = _ran(device, start, end, Work.COMPUTE, Work.MEMORY)
    return Measured(
        rank=rank,
        about=read.about,
        busy_seconds=_ran(device, start, end, *Work).total / 1e9,
        comm_seconds=comm.total / 1e9,
        comm_hidden_seconds=comm.both(computing).total / 1e9,
    )


def _ran(device: DeviceWork, start: int, end: int, *works: Work) -> Intervals:
    rows = np.isin(device.work, np.array(works, np.int8))
    if not rows.any():
        return EMPTY
    return union(device.start[rows], device.end[rows]).clipped(start, end)


def _unexplained(rank: RankMeasured) -> RankMeasured:
    """When work was launched is not recorded: that the host was late is not known either."""

    def moved(values: dict[str, float]) -> dict[str, float]:
        rest = {name: value for name, value in values.items() if name != "host"}
        late = values.get("host", 0.0)
        return rest | ({"unexplained": rest.get("unexplained", 0.0) + late} if late else {})

    steps = {
        name: np.array(values) for name, values in rank.by_step.items() if name != "unexplained"
    }
    idle = [np.array(rank.by_step[n]) for n in ("host", "unexplained") if n in rank.by_step]
    steps.pop("host", None)
    if idle:
        steps["unexplained"] = np.sum(idle, axis=0)
    return replace(
        rank, accounts=moved(rank.accounts), host={},
        by_step={name: tuple(values.tolist()) for name, values in steps.items()},
        gaps=tuple(
            replace(gap, account="unexplained", cause="") if gap.account == "host" else gap
            for gap in rank.gaps
        ),
        queue_mean=0.0, queue_most=0, queue_empty=0.0,
    )  # fmt: skip


def _missing(read: Read) -> dict[str, str]:
    """Accounts that a profile without the right annotations cannot tell apart."""
    trace = read.trace
    found = {
        "compute.clock": "readings of the device's clock",
        "compute.recompute": "which operations compute again: a profile's operations have no passes",
        "optimizer": "which operations update weights: a program is compiled as a whole",
    }
    if not len(trace.products):
        found["compute.model"] = (
            "model_flops of operations: JAX's reader gives none of this profile"
        )
    for mark, (account, name) in _ANNOTATED.items():
        if not (trace.marks.mark == mark).any():
            found[account] = f"an annotation: jax.profiler.TraceAnnotation({name!r})"
    if not read.about.launched:
        found["host"] = "when the host launched the device's work"
    return found
