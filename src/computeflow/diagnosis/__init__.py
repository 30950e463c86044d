"""Findings one can act on, from a measured ledger and an expected one: start with `diagnose`."""

from computeflow.diagnosis.diagnose import diagnose
from computeflow.diagnosis.values import Abstained, Diagnosis, Expected

__all__ = ["Abstained", "Diagnosis", "Expected", "diagnose"]
