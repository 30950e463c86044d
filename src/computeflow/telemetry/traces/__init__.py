"""The common trace format of PyTorch, Nsight Systems and JAX profiles, and its accounting.

`measure_trace` keeps what matters of one rank, `job_ledger` books ranks together; no file is read
here.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "JobLedger": "job_ledgers",
    "OPERATIONS": "rank_measurements",
    "TraceOptions": "rank_measurements",
    "Origin": "trace",
    "RankLedger": "job_ledgers",
    "RankMeasurement": "rank_measurements",
    "ShapeRow": "rank_measurements",
    "TYPES": "job_ledgers",
    "StepTimeline": "step_timelines",
    "Trace": "trace",
    "TracedJob": "job_ledgers",
    "job_ledger": "job_ledgers",
    "measure_trace": "rank",
    "step_timeline": "step_timelines",
    "perfetto_writer": "perfetto",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
