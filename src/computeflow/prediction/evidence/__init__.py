"""What measured runs say beyond the formulas: how mature a stack is on a device, and how sure.

`seen_runs` has the runs; `maturity` learns from them with shrinkage; `rests_on` says how many runs
stand behind a prediction, and how far away they are.
"""

from computeflow.prediction.evidence.maturity import Maturity, Outlook, learn, outlook_of
from computeflow.prediction.evidence.rests_on import RunEvidence, evidence_for, packaged_evidence
from computeflow.prediction.evidence.seen_runs import SeenRun, Traits, seen_runs, traits_of

__all__ = [
    "Maturity",
    "Outlook",
    "RunEvidence",
    "SeenRun",
    "Traits",
    "evidence_for",
    "learn",
    "outlook_of",
    "packaged_evidence",
    "seen_runs",
    "traits_of",
]
