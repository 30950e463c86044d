"""A whole run, with everything that goes wrong: start with `Run` and `simulate`.

`Conditions` is what a run meets, `computeflow.scheduling.Policy` what it does about it.
"""

from computeflow.simulation.conditions import Conditions, changed, inputs, usual_conditions
from computeflow.simulation.failures import Failures, failure_models, find_failures
from computeflow.simulation.run import Run
from computeflow.simulation.simulate import Simulation, Spread, simulate, simulate_many

__all__ = [
    "Conditions",
    "Failures",
    "Run",
    "Simulation",
    "Spread",
    "changed",
    "failure_models",
    "find_failures",
    "inputs",
    "simulate",
    "simulate_many",
    "usual_conditions",
]
