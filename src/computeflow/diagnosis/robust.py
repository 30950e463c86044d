"""Robust statistics: up to half of the values may be wrong."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

_SIGMA = 1.4826
"""The standard deviation of normal values over their median absolute deviation."""


def median_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Median and spread; the spread is a standard deviation, from the median absolute deviation."""
    middle = statistics.median(values)
    return middle, _SIGMA * statistics.median(abs(value - middle) for value in values)
