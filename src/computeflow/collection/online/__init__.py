"""Findings while runs go on: windows of live runs, the rule book over them, and what is open.

Start with `Watcher`.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "LiveFinding": "live_values",
    "LiveNode": "live_values",
    "LiveRun": "live_values",
    "WatchOptions": "watcher",
    "Watcher": "watcher",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
