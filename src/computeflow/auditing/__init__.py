"""Sources in, one `AuditReport` out: ledger, findings, comparison, prices. Start with `audit`."""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "AuditReport": "report",
    "AuditRequest": "request",
    "audit": "report",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
