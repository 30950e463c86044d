"""Responses to failures and slow parts: pure policies, the same for the simulator and for a controller.

Start with `Policy` for what is fixed before a run, with `decide` for a job that runs, and with
`choose_nodes` for one that is to be submitted. A policy is a frozen value; its methods take numbers or
arrays of them and answer with numbers or truths. None knows a clock, a scheduler or a file.
"""

from typing import TYPE_CHECKING

from computeflow._lazy import lazy_exports
from computeflow.economics.checkpoint_intervals import daly_seconds, young_seconds
from computeflow.scheduling.checkpoints import Checkpoints
from computeflow.scheduling.deciding import decide
from computeflow.scheduling.decision_inputs import DecisionInputs
from computeflow.scheduling.job_state import ExcludedNode, JobState, PastMove
from computeflow.scheduling.move_policy import MovePolicy
from computeflow.scheduling.options import JobDecision, MovePrice, PricedOption
from computeflow.scheduling.persistence import Persistence
from computeflow.scheduling.policy import Eviction, Policy, Shrinking
from computeflow.scheduling.spares import Spares, spares_for
from computeflow.scheduling.troubles import Trouble, trouble_from

if TYPE_CHECKING:
    from computeflow.scheduling.node_choice import NodeChoice, NodePool, PlacedNodes, choose_nodes

__getattr__, __dir__ = lazy_exports(
    __name__,
    dict.fromkeys(("NodeChoice", "NodePool", "PlacedNodes", "choose_nodes"), "node_choice"),
)

__all__ = [
    "Checkpoints",
    "DecisionInputs",
    "Eviction",
    "ExcludedNode",
    "JobDecision",
    "JobState",
    "MovePolicy",
    "MovePrice",
    "NodeChoice",
    "NodePool",
    "PastMove",
    "Persistence",
    "PlacedNodes",
    "Policy",
    "PricedOption",
    "Shrinking",
    "Spares",
    "Trouble",
    "choose_nodes",
    "daly_seconds",
    "decide",
    "spares_for",
    "trouble_from",
    "young_seconds",
]
