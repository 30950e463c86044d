"""The best layout of a job on a cluster: enumerate, prune, rank, explain. Start with `plan`."""

from computeflow.planning.limits import Limits
from computeflow.planning.plans import Plan, Plans, plan, why_no_plan
from computeflow.planning.search import OBJECTIVES, search
from computeflow.planning.space import Space, space_of

__all__ = [
    "OBJECTIVES", "Limits", "Plan", "Plans", "Space", "plan", "search", "space_of", "why_no_plan",
]  # fmt: skip
