"""What a run left behind, as measured ledgers. Start with `audit`."""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "Asked": "observed",
    "Observed": "observed",
    "RankLedger": "traces.job",
    "Settings": "audit",
    "Source": "observed",
    "Together": "joining",
    "audit_files": "audit",
    "observe": "registry",
    "rooflines": "traces.roofline",
    "sort_files": "registry",
    "together": "joining",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
