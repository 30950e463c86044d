"""Findings one can act on, by one rule book: `diagnose` for traces, `diagnose_source` for the rest."""

from computeflow.diagnosis.diagnose import diagnose, diagnose_source
from computeflow.diagnosis.rules import RULES
from computeflow.diagnosis.values import Abstained, Diagnosis, Expected

__all__ = ["RULES", "Abstained", "Diagnosis", "Expected", "diagnose", "diagnose_source"]
