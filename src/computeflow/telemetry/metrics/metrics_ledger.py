"""The ledger of metrics: seconds in which a GPU was held and nothing ran, and the rest.

Utilisation cannot tell kernels of the model from communication or waiting inside kernels, so what
is not idle is all booked as `compute`. Seconds in which nobody held a GPU are left out: the wall
time of the ledger is the mean held time of a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from computeflow.ledger import Entry, Ledger, Window
from computeflow.telemetry.metrics.exporter_fields import NEEDED
from computeflow.telemetry.metrics.gpu_activity import ActivityTimeline, Flags, energy_of_samples

_NEEDS_TRACE = "a trace"
_HOLDER = "who holds a GPU: pod or job labels, or DCGM_FI_DEV_FB_USED"
_IN_COMPUTE = (
    "comm", "host", "input", "copy", "straggler", "imbalance", "bubble", "optimizer", "checkpoint",
    "evaluation",
)  # fmt: skip


def book(lines: Sequence[ActivityTimeline]) -> tuple[Ledger | None, str]:
    """One ledger of all GPUs that somebody held, or why there is none."""
    if not lines:
        return None, f"no activity was sampled: it needs {NEEDED['utilisation']}"
    timed = [line for line in lines if line.timed and line.seconds.sum() > 0]
    if not timed:
        return None, "the samples have fewer than two times: how long a state lasted is unknown"
    start = min(float(line.times[0]) for line in timed)
    end = max(float(line.times[-1]) for line in timed)
    kept = [line for line in timed if _seconds(line, line.held | ~line.known) > 0]
    if not kept:
        return None, "nobody held a GPU: no label names a job or pod, no memory in use, no activity"
    entries = [entry for line in kept for entry in _entries(line, end - start)]
    whole = math.fsum(entry.gpu_seconds for entry in entries)
    ledger = Ledger(
        gpus=len(kept),
        wall_seconds=whole / len(kept),
        entries=tuple(_summed(entries)),
        basis="measured",
        window=Window(
            label="held time in the samples' window", start_seconds=start, end_seconds=end
        ),
        unavailable=_unavailable(kept, entries),
        booked_under=dict.fromkeys(_IN_COMPUTE, "compute"),
    )
    return ledger, ""


def _unavailable(lines: Sequence[ActivityTimeline], entries: Sequence[Entry]) -> dict[str, str]:
    missing = dict.fromkeys(_IN_COMPUTE, _NEEDS_TRACE) | {"compute.model": "the model's FLOPs"}
    if not all(line.known.all() for line in lines):
        missing["idle"] = _HOLDER
    blank = {entry.account for entry in entries if entry.joules is None}
    if blank - {"unexplained"}:
        missing["joules"] = f"power throughout: {NEEDED['power']}"
    elif blank:
        missing["joules"] = "samples throughout the window"
    return missing


def _entries(line: ActivityTimeline, window: float) -> list[Entry]:
    idle = line.idle
    unknown = ~line.known
    entries = [
        Entry(
            account=name, gpu_seconds=_seconds(line, chosen), joules=energy_of_samples(line, chosen)
        )
        for name, chosen in (
            ("compute", line.active > 0),
            ("idle", idle),
            ("unexplained", unknown & (line.active <= 0)),
        )
        if _seconds(line, chosen) > 0
    ]
    missed = window - float(line.seconds.sum())
    if missed > 1e-9 * window:
        entries.append(Entry(account="unexplained", gpu_seconds=missed))
    return entries


def _seconds(line: ActivityTimeline, chosen: Flags) -> float:
    return float(np.where(chosen, line.seconds, 0.0).sum())


def _summed(entries: Sequence[Entry]) -> list[Entry]:
    """One entry per account, and another for its seconds without joules."""
    groups: dict[tuple[str, bool], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.account, entry.joules is None), []).append(entry)
    return [
        Entry(
            account=name,
            gpu_seconds=math.fsum(entry.gpu_seconds for entry in group),
            joules=None if blank else math.fsum(entry.joules or 0.0 for entry in group),
        )
        for (name, blank), group in groups.items()
    ]
