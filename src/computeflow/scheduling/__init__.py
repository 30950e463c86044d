"""Responses to failures: pure policies, the same for the simulator and for a live controller.

Start with `Policy`. A policy is a frozen value; its methods take numbers or arrays of them and
answer with numbers or truths. None knows a clock, a scheduler or a file.
"""

from computeflow.economics.checkpoint_intervals import daly_seconds, young_seconds
from computeflow.scheduling.checkpoints import Checkpoints
from computeflow.scheduling.policy import Eviction, Policy, Shrinking
from computeflow.scheduling.spares import Spares, spares_for

__all__ = [
    "Checkpoints",
    "Eviction",
    "Policy",
    "Shrinking",
    "Spares",
    "daly_seconds",
    "spares_for",
    "young_seconds",
]
