"""How a node and a job are at this moment, as a collector knows it: `LiveNodeState`, `LiveJobState`."""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "JOB": "live_states",
    "NODE": "live_states",
    "LiveJobState": "live_states",
    "LiveNodeState": "live_states",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
