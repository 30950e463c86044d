"""Build or rent: costs of owning a fleet and of renting it, with ranges. Start with `decide`."""

from computeflow.comparison.build_or_rent.break_even import Decision, decide
from computeflow.comparison.build_or_rent.build_cases import BuildCase, RunNeed, load_cases, need_of
from computeflow.comparison.build_or_rent.ownership_costs import BuiltFleet, Hall

__all__ = [
    "BuildCase",
    "BuiltFleet",
    "Decision",
    "Hall",
    "RunNeed",
    "decide",
    "load_cases",
    "need_of",
]
