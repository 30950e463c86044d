"""A collector's store, also while it is written: `store_runs` first.

Sealed steps and readings are in Parquet, the last minutes in the journal (`journal_rows`).
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {"StoreOpening": "store_runs"}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
