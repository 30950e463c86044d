"""ComputeFlow: where every GPU-second, joule and dollar of training goes, and what to change.

The names below are imported when they are first used, so that `import computeflow` costs nothing
and a part that lives in a training process pulls in nothing else.
"""

from computeflow._lazy import lazy_exports

__version__ = "0.1.0"

_EXPORTS = {
    "Answer": "answers",
    "Catalog": "catalog",
    "Entry": "ledger",
    "Finding": "ledger",
    "Ledger": "ledger",
    "Window": "ledger",
    "find_model": "catalog",
    "gaps": "ledger",
    "load_catalog": "catalog",
    "predict": "answers",
}
__all__ = ["__version__", *_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
