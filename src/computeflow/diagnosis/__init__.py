"""Findings with remedies, from one rule book: `diagnose` for traces, `diagnose_source` for others."""

from computeflow.diagnosis.diagnose import diagnose, diagnose_source
from computeflow.diagnosis.diagnosis import Diagnosis, Expected, SkippedRule
from computeflow.diagnosis.rules import RULES

__all__ = ["RULES", "Diagnosis", "Expected", "SkippedRule", "diagnose", "diagnose_source"]
