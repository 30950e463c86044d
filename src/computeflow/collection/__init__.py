"""What watches runs while they go on: `launch` starts one under the recorder, `seal` packs it."""

from computeflow._lazy import lazy_exports

_EXPORTS = {"launch": "launching", "seal": "sealing"}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
