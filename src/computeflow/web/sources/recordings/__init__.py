"""Run folders of `computeflow record`, and whatever else `audit` reads: `recorded_runs` first."""

from computeflow._lazy import lazy_exports

_EXPORTS = {"RecordingOpening": "recorded_runs"}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
