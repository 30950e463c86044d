"""`Persistence`: how long a slowdown that has lasted for a while will go on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistence:
    """Durations of slowdowns as a Lomax distribution: S(t) = (1 + t / scale) ** -shape.

    It is heavy-tailed, so what has lasted long is likelier to go on: after `lasted` seconds the mean
    of what is to come is (scale + lasted) / (shape - 1).
    """

    scale_seconds: float
    shape: float = 2.0
    source: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.scale_seconds < math.inf:
            raise InputError(f"a scale of {self.scale_seconds:g} s: more than zero")
        if not 1 < self.shape <= 100:
            raise InputError(f"a shape of {self.shape:g}: more than 1, at most 100")

    @property
    def mean_seconds(self) -> float:
        return self.scale_seconds / (self.shape - 1)

    def survival(self, seconds: Floats | float, lasted: Floats | float = 0.0) -> Floats:
        """How likely it goes on for longer than `seconds`, having lasted for `lasted`."""
        age = self.scale_seconds + np.asarray(lasted, dtype=np.float64)
        return np.asarray((age / (age + seconds)) ** self.shape)

    def expected_seconds(self, lasted: Floats | float, horizon: Floats | float) -> Floats:
        """Mean time that it goes on, within the next `horizon` seconds: the integral of the survival
        from 0 to the horizon.
        """
        age = self.scale_seconds + np.asarray(lasted, dtype=np.float64)
        power = self.shape - 1
        return np.asarray(age / power * (1 - (age / (age + horizon)) ** power))

    def quantile(self, share: float, lasted: float) -> float:
        """Seconds that it goes on for in this share of the cases, at most."""
        age = self.scale_seconds + lasted
        return float(age * ((1 - share) ** (-1 / self.shape) - 1))


COMPUTATION = Persistence(
    scale_seconds=600.0,
    source="GREYHOUND (USENIX ATC'25, arXiv:2410.12588): 10 minutes for slow computation",
)
"""The abstract has durations from under a minute to nearly ten hours; the means, here and below, are
those of a published summary of it (haiqwa.github.io, "greyhound-fail-slow-hybrid-parallel-training").
With a shape of 2 the mean is the scale, and the longest of 700 to 4,000 durations is ten hours."""
COMMUNICATION = Persistence(
    scale_seconds=1440.0,
    source="GREYHOUND (USENIX ATC'25, arXiv:2410.12588): 24 minutes for slow communication",
)
