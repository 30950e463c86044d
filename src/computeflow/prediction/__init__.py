"""Step time, memory and power of a job before it runs: start with `predict`.

The formulas are in `kernels`, `communication` and `step`, their numbers
in `parameters.toml`.
"""

from computeflow.prediction.parameters import Parameters, load_parameters
from computeflow.prediction.predict import Prediction, predict
from computeflow.prediction.stack import STACKS, Stack, find_stack

__all__ = [
    "STACKS",
    "Parameters",
    "Prediction",
    "Stack",
    "find_stack",
    "load_parameters",
    "predict",
]
