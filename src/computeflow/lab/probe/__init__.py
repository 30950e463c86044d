"""Measurement of what a machine delivers. `run_probe.probe` measures, `grading` judges,
`calibration` writes the calibration file.

Importing this package imports no torch; `run_probe` does.
"""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "ProbedRanks": "result",
    "ProbeFigure": "grading",
    "ProbeOptions": "run_probe",
    "Probe": "result",
    "pick_device": "run_probe",
    "probe": "run_probe",
    "probe_on_ray": "on_ray",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
