"""The one trace that profiles of PyTorch, Nsight Systems and JAX are read into, and its accounting.

`measure_trace` keeps what matters of one rank, `job_ledger` books ranks together; no file is read here.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "Job": "job",
    "OPERATIONS": "measured",
    "Options": "measured",
    "Origin": "trace",
    "RankLedger": "job",
    "RankMeasured": "measured",
    "ShapeRow": "measured",
    "TYPES": "job",
    "Timeline": "timeline",
    "Trace": "trace",
    "TracedJob": "job",
    "job_ledger": "job",
    "measure_trace": "rank",
    "step_timeline": "timeline",
    "perfetto_writer": "perfetto",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
