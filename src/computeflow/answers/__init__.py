"""The library function behind every command, and what each returns.

A function's keywords are the command's long options; what it returns is an `Answer`. The names below
are imported when they are first used.
"""

from typing import TYPE_CHECKING

from computeflow._lazy import lazy_exports

if TYPE_CHECKING:
    from computeflow.answers.answer import Answer as Answer
    from computeflow.answers.audits import AuditAnswer as AuditAnswer
    from computeflow.answers.audits import audit as audit
    from computeflow.answers.checks import CheckAnswer as CheckAnswer
    from computeflow.answers.checks import check as check
    from computeflow.answers.placements import PlaceAnswer as PlaceAnswer
    from computeflow.answers.placements import place as place
    from computeflow.answers.plans import BatchesAnswer as BatchesAnswer
    from computeflow.answers.plans import FrontAnswer as FrontAnswer
    from computeflow.answers.plans import PlanAnswer as PlanAnswer
    from computeflow.answers.plans import PoolsAnswer as PoolsAnswer
    from computeflow.answers.plans import plan as plan
    from computeflow.answers.predictions import PredictAnswer as PredictAnswer
    from computeflow.answers.predictions import predict as predict

_EXPORTS = {
    "Answer": "answer",
    "AuditAnswer": "audits",
    "BatchesAnswer": "plans",
    "CheckAnswer": "checks",
    "FrontAnswer": "plans",
    "PlaceAnswer": "placements",
    "PlanAnswer": "plans",
    "PoolsAnswer": "plans",
    "PredictAnswer": "predictions",
    "audit": "audits",
    "check": "checks",
    "place": "placements",
    "plan": "plans",
    "predict": "predictions",
}
__all__ = [*_EXPORTS]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
