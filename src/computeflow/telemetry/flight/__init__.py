"""Dumps of PyTorch's flight recorder: who keeps a job from going on. Start with `source`."""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "Flight": "source",
    "FlightRecorder": "source",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
