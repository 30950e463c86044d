"""A plan as the files that frameworks and launchers take, and such files back into a layout."""

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "Exported": "writing",
    "FrameworkTerms": "terms",
    "Reading": "model",
    "Setup": "model",
    "export": "writing",
    "read_file": "reading",
    "setup_of": "reading",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
