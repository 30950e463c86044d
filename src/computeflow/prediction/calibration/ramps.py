"""Rates that rise with a size, fitted to a table of measurements: top rate and sizes of half rate."""

from __future__ import annotations

import numpy as np

from computeflow.prediction.blocks import Floats

_NOISE = 0.03
"""Deviation of ln of one measured rate around a smooth ramp: tiles, clocks."""
_PRIOR = 1.0
"""Deviation of ln of a half-rate size around its generic value; holds where few were measured."""


def fit_ramps(rates: Floats, sizes: Floats, start: Floats) -> tuple[float, Floats]:
    """Top and halves of `rate = top / ((1 + half_1 / size_1) (1 + half_2 / size_2) ...)`.

    Least squares in log space by Gauss-Newton; the top has a closed form and drops out. `sizes` has
    one row for each half, `start` their generic values.
    """
    logs, centre = np.log(rates), np.log(start)
    halves = centre.copy()
    for _ in range(60):
        ramp = np.exp(halves)[:, None] / sizes
        shape = -np.log1p(ramp).sum(axis=0)
        residuals = logs - shape
        residuals = residuals - residuals.mean()
        slopes = -ramp / (1 + ramp)
        slopes = slopes - slopes.mean(axis=1, keepdims=True)
        normal = slopes @ slopes.T / _NOISE**2 + np.eye(len(start)) / _PRIOR**2
        step = np.linalg.solve(
            normal, slopes @ residuals / _NOISE**2 - (halves - centre) / _PRIOR**2
        )
        halves = halves + np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-9:
            break
    return top_rate(rates, sizes, np.exp(halves)), np.exp(halves)


def top_rate(rates: Floats, sizes: Floats, halves: Floats) -> float:
    """The top alone, where the halves are known."""
    return float(np.exp(np.mean(np.log(rates) + np.log1p(halves[:, None] / sizes).sum(axis=0))))
