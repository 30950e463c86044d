"""The library function behind every command, and what each returns.

A function's keywords are the command's long options; what it returns is an `Answer`. The names below
are imported when they are first used.
"""

from typing import TYPE_CHECKING

from computeflow._lazy import lazy_exports

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
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
