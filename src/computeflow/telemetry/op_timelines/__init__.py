"""Replay of op timelines: what a step would take if some operations took their usual time. Start
with `op_timeline_source`.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "OpTimelineFacts": "op_timeline_source",
    "OpTimelines": "op_timeline_source",
    "Slowdown": "slowdown",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
