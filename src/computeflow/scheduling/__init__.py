"""Responses to failures: pure policies, the same for the simulator and for a live controller.

Start with `Policy`. A policy is a frozen value; its methods take numbers or arrays of them and
answer with numbers or truths. None knows a clock, a scheduler or a file.
"""

from computeflow.economics.checkpoint_intervals import daly_seconds, young_seconds
from computeflow.scheduling.checkpoints import Checkpoints
from computeflow.scheduling.deciding import decide
from computeflow.scheduling.job_state import ExcludedNode, JobState, PastMove
from computeflow.scheduling.move_policy import MovePolicy
from computeflow.scheduling.options import JobDecision, MovePrice, PricedOption
from computeflow.scheduling.persistence import Persistence
from computeflow.scheduling.policy import Eviction, Policy, Shrinking
from computeflow.scheduling.spares import Spares, spares_for
from computeflow.scheduling.troubles import Trouble, trouble_from

__all__ = [
    "Checkpoints",
    "Eviction",
    "ExcludedNode",
    "JobDecision",
    "JobState",
    "MovePolicy",
    "MovePrice",
    "PastMove",
    "Persistence",
    "Policy",
    "PricedOption",
    "Shrinking",
    "Spares",
    "Trouble",
    "daly_seconds",
    "decide",
    "spares_for",
    "trouble_from",
    "young_seconds",
]
