"""How good the predictor is: measured runs predicted (`validate`), layouts chosen (`regret`).

`few_shot` scores calibrating on a few rows; `fitting` is what fitting everything would give.
"""

from computeflow.prediction.validation.error_summary import (
    ErrorSummary,
    Validation,
    summarise,
    validate,
)
from computeflow.prediction.validation.few_shot import FewShot, few_shot
from computeflow.prediction.validation.ranking import Regret, regret, without_stall

__all__ = [
    "ErrorSummary",
    "FewShot",
    "Regret",
    "Validation",
    "few_shot",
    "regret",
    "summarise",
    "validate",
    "without_stall",
]
