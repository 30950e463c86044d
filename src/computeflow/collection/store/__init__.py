"""What a collector keeps: a journal that is synced before it answers, Parquet, and a small SQLite."""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "StateDatabase": "state_database",
    "StoreFolder": "store_folder",
    "open_store": "store_folder",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
