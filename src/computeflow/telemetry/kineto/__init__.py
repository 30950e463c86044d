"""PyTorch profiler traces (Kineto JSON): `read` gives the trace of one rank's file."""

from computeflow._lazy import lazy_exports

_EXPORTS = {"read": "kineto_reader", "recognises": "kineto_reader"}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
