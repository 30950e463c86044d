"""Fit the parameters to measured steps: robust, with priors, sources weighted against their size.

The only module that imports scipy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from computeflow.prediction.parameters import Parameters
from computeflow.prediction.published_runs import MeasuredRun
from computeflow.prediction.step import account_step
from computeflow.prediction.step_inputs import StepInputs

_NOISE = 0.12
"""Spread (in ln) of runs around any formula that knows no more than the table: site and release."""
_FULL_WEIGHT = 25
"""Rows of one source that count fully; beyond, a source weighs by the root of its size."""


def log_errors(
    cases: Sequence[MeasuredRun], inputs: StepInputs, parameters: Parameters
) -> NDArray[np.float64]:
    measured = np.array([case.measured_seconds for case in cases])
    return np.asarray(np.log(account_step(inputs, parameters).seconds / measured))


def fit(cases: Sequence[MeasuredRun], inputs: StepInputs, start: Parameters) -> Parameters:
    """The parameters that explain the cases, no farther from their priors than they must be."""
    from scipy.optimize import least_squares

    sizes = Counter(case.source for case in cases)
    weights = np.array([min(1.0, (_FULL_WEIGHT / sizes[c.source]) ** 0.5) for c in cases]) / _NOISE
    centre = np.log(start.priors)

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        errors = log_errors(cases, inputs, start.with_values(np.exp(logs)))
        return np.concatenate([weights * errors, (logs - centre) / start.deviations])

    fitted = least_squares(residuals, centre, loss="soft_l1", max_nfev=40)
    return start.with_values(np.exp(fitted.x))
