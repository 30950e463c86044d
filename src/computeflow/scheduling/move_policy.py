"""`MovePolicy`: when a move is worth it; the same value for a simulated run and for a live controller.

`Persistence` says how long a slowdown that has lasted so long will go on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

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

    def survival(self, seconds: Floats | float) -> Floats:
        """How likely a slowdown lasts longer than this."""
        return np.asarray((1 + np.asarray(seconds) / self.scale_seconds) ** -self.shape)

    def expected_seconds(self, lasted: Floats | float, horizon: Floats | float) -> Floats:
        """Mean time that it goes on, within the next `horizon` seconds: the integral of
        S(lasted + t) / S(lasted) from 0 to the horizon.
        """
        age = self.scale_seconds + np.asarray(lasted, dtype=np.float64)
        power = self.shape - 1
        return np.asarray(age / power * (1 - (age / (age + horizon)) ** power))


COMPUTATION = Persistence(
    scale_seconds=600.0,
    source="GREYHOUND (USENIX ATC'25; arXiv:2410.12588): slow computation lasts 10 minutes on average, "
    "from under a minute to nearly ten hours",
)
COMMUNICATION = Persistence(
    scale_seconds=1440.0,
    source="GREYHOUND (USENIX ATC'25; arXiv:2410.12588): slow communication lasts 24 minutes on "
    "average, from under a minute to nearly ten hours",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePolicy:
    debounce_seconds: float = 300.0
    """A slowdown that has not lasted so long moves nothing: Kueue took blips of 1 to 3 minutes for
    failures with a rule of 30 s (kubernetes-sigs/kueue#12735)."""
    dead_after_seconds: float = 30.0
    """A rank or node that has been silent for so long is dead."""
    min_between_seconds: float = 1_800.0
    """Between two moves of one job."""
    max_moves_per_day: int = 6
    """Moves of one job; a dead job is started again all the same, up to twice as often."""
    min_gain_share: float = 0.0
    """A move must gain more than this share of its price beyond the price."""
    computation: Persistence = field(default=COMPUTATION)
    communication: Persistence = field(default=COMMUNICATION)
    prior_moves: float = 4.0
    """How many earlier moves the trust in our own predictions is worth before there are any."""

    def __post_init__(self) -> None:
        for name in (
            "debounce_seconds",
            "dead_after_seconds",
            "min_between_seconds",
            "min_gain_share",
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} = {getattr(self, name):g}: zero or more, and finite")
        if self.max_moves_per_day < 0:
            raise InputError(f"max_moves_per_day = {self.max_moves_per_day}: zero or more")
        if not self.prior_moves > 0:
            raise InputError(f"prior_moves = {self.prior_moves:g}: more than zero")
