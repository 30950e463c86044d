"""The one trace that profiles of PyTorch, Nsight Systems and JAX are read into, and its accounting.

`measure_trace` keeps what matters of one rank, `job_ledger` books ranks together; no file is read here.
Names are loaded when first used: most sources are no traces.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from computeflow.telemetry.traces.job import TYPES, Job, RankLedger, TracedJob, job_ledger
    from computeflow.telemetry.traces.measured import (
        OPERATIONS,
        Options,
        RankMeasured,
        ShapeRow,
    )
    from computeflow.telemetry.traces.perfetto import write_perfetto
    from computeflow.telemetry.traces.rank import measure_trace
    from computeflow.telemetry.traces.timeline import Timeline, step_timeline
    from computeflow.telemetry.traces.trace import Origin, Trace

_MODULES = {
    "job": ("TYPES", "Job", "RankLedger", "TracedJob", "job_ledger"),
    "measured": ("OPERATIONS", "Options", "RankMeasured", "ShapeRow"),
    "perfetto": ("write_perfetto",),
    "rank": ("measure_trace",),
    "timeline": ("Timeline", "step_timeline"),
    "trace": ("Origin", "Trace"),
}

__all__ = [
    "OPERATIONS", "TYPES", "Job", "Options", "Origin", "RankLedger", "RankMeasured", "ShapeRow",
    "Timeline", "Trace", "TracedJob", "job_ledger", "measure_trace", "step_timeline",
    "write_perfetto",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
