"""Readers of recordings: traces, logs, metrics and other sources become measured ledgers. Start
with `audit`.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "SourceRequest": "source_reports",
    "SourceReport": "source_reports",
    "RankLedger": "traces.job_ledgers",
    "TraceSettings": "trace_audit",
    "Source": "source_reports",
    "CorrelatedEvents": "correlation",
    "audit_files": "trace_audit",
    "observe": "source_registry",
    "rooflines": "traces.roofline",
    "sort_files": "source_registry",
    "correlate": "correlation",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
