"""What pages are about: recordings, or a collector's store. Nothing is written to either.

`opening.open_directory` finds out which it is; pages ask the `Opening` that it returns. Beside it is
what both answer with: `step_table`, `step_spans`, `reading_curves`.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "AuditOptions": "opening",
    "Opening": "opening",
    "RunLine": "opening",
    "find_run": "opening",
    "open_directory": "opening",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
