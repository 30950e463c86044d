"""Dumps of PyTorch's flight recorder: which ranks hold a job up. Start with `flight_source`."""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "Flight": "flight_source",
    "FlightRecorder": "flight_source",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
