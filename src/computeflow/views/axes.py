"""Axes of figures that Plotly alone would label badly."""

from __future__ import annotations

import math
from collections.abc import Sequence

from computeflow.views.figures import Data

_DECADES = 3.5
"""Decades up to which ticks at 1, 2 and 5 have room for their labels on a phone."""


def log_axis(values: Sequence[float]) -> Data:
    """From a little under the least to a little over the most, with ticks at 1, 2 and 5, or at 1 alone
    where those would touch on a narrow screen.
    """
    low, high = math.log10(min(values)), math.log10(max(values))
    pad = min(max(0.12 * (high - low), 0.2), 0.25)  # twice 0.2 is the longest way between ticks
    low, high = low - pad, high + pad
    powers = range(math.floor(low), math.ceil(high) + 1)
    digits = (1, 2, 5) if high - low < _DECADES else (1,)
    ticks = [digit * 10.0**power for power in powers for digit in digits]
    ticks = [tick for tick in ticks if low <= math.log10(tick) <= high]
    texts = [f"{tick:,g}" for tick in ticks]
    return {"type": "log", "range": [low, high], "tickvals": ticks, "ticktext": texts}
