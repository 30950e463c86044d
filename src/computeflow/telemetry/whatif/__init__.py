"""Op timelines of all workers: what a step would take if some operations took their usual time.
Start with `source`.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "OpTimeline": "source",
    "OpTimelines": "source",
    "Slowdown": "slowdown",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
