"""ComputeFlow: where every GPU-second, joule and dollar of training goes, and what to change.

The names below are imported when they are first used, so that `import computeflow` costs nothing
and a part that lives in a training process pulls in nothing else.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "Catalog": "catalog",
    "Entry": "ledger",
    "Finding": "ledger",
    "Ledger": "ledger",
    "Window": "ledger",
    "find_model": "catalog",
    "gaps": "ledger",
    "load_catalog": "catalog",
}
__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'computeflow' has no attribute {name!r}")
    return getattr(importlib.import_module(f"computeflow.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return __all__
