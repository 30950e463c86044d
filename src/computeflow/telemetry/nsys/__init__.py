"""SQLite exports of Nsight Systems: `read` gives a trace for every GPU of a file."""

from computeflow._lazy import lazy_exports

_EXPORTS = {"read": "nsys_reader", "recognises": "nsys_reader"}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
