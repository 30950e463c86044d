"""The library function behind every command, and what each returns.

A function's keywords are the command's long options; what it returns is an `Answer`. The names below
are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from computeflow.answers.answer import Answer as Answer
    from computeflow.answers.predictions import PredictAnswer as PredictAnswer
    from computeflow.answers.predictions import predict as predict

_EXPORTS = {
    "Answer": "answer",
    "PredictAnswer": "predictions",
    "predict": "predictions",
}
__all__ = [*_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'computeflow.answers' has no attribute {name!r}")
    return getattr(importlib.import_module(f"computeflow.answers.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return __all__
