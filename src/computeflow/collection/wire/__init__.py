"""Batches between agents and collectors: `pack_batch`, `unpack_batch`."""

from computeflow._lazy import lazy_exports

_EXPORTS = dict.fromkeys(("Batch", "make_batch", "pack_batch", "unpack_batch"), "batches")
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
