"""What a machine really gives. `run.probe` measures, `grade` judges, `calibration` hands on.

Importing this package imports no torch; `run` does.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "Fleet": "result",
    "Item": "grade",
    "Options": "run",
    "Probe": "result",
    "pick_device": "run",
    "probe": "run",
    "probe_on_ray": "on_ray",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
