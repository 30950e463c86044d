"""A whole run with failures: start with `RunInputs` and `simulate`.

`Conditions` are its failure rates and recovery times, `computeflow.scheduling.Policy` its response.
"""

from computeflow.simulation.conditions import (
    Conditions,
    change_conditions,
    inputs,
    usual_conditions,
)
from computeflow.simulation.failures import Failures, failure_models, find_failures
from computeflow.simulation.run_inputs import RunInputs
from computeflow.simulation.simulate import Simulation, Spread, simulate, simulate_many

__all__ = [
    "Conditions",
    "Failures",
    "RunInputs",
    "Simulation",
    "Spread",
    "change_conditions",
    "failure_models",
    "find_failures",
    "inputs",
    "simulate",
    "simulate_many",
    "usual_conditions",
]
