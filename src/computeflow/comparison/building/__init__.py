"""Build or rent: what owning a fleet costs beside renting it, with ranges. Start with `decide`."""

from computeflow.comparison.building.cases import Case, Need, load_cases, need_of
from computeflow.comparison.building.costs import Fleet, Hall
from computeflow.comparison.building.decide import Decision, decide

__all__ = [
    "Case",
    "Decision",
    "Fleet",
    "Hall",
    "Need",
    "decide",
    "load_cases",
    "need_of",
]
