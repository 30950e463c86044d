"""`audit`: recordings in, one `AuditReport` out, with ledger, findings, comparison and prices."""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "AuditReport": "audit_report",
    "AuditRequest": "audit_request",
    "audit": "audit_report",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
