"""How often to save: a stated interval, or the one that Daly's formula gives.

Young (CACM 17:9, 1974): sqrt(2 w M). Daly (FGCS 22:3, 2006, eq. 37): a higher order of the same,
for w < 2 M, else M. w is the time that a save blocks training, M the mean time between
interruptions. Both assume that interruptions come at a constant rate and that a save is safe as
soon as it stops blocking.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from computeflow.errors import InputError
from computeflow.units import DAY_SECONDS


def young_seconds(write_seconds: float, between_seconds: float) -> float:
    _check(write_seconds, between_seconds)
    return math.sqrt(2 * write_seconds * between_seconds)


def daly_seconds(write_seconds: float, between_seconds: float) -> float:
    _check(write_seconds, between_seconds)
    if write_seconds >= 2 * between_seconds:
        return between_seconds
    part = write_seconds / (2 * between_seconds)
    root = math.sqrt(2 * write_seconds * between_seconds)
    return root * (1 + math.sqrt(part) / 3 + part / 9) - write_seconds


def _check(write_seconds: float, between_seconds: float) -> None:
    if not (write_seconds >= 0 and between_seconds > 0):
        raise InputError(
            f"a write of {write_seconds:g} s and {between_seconds:g} s between interruptions: "
            "the first is zero or more, the second more than zero"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    interval_seconds: float | None = None
    """Work between two saves; None: Daly's interval."""

    def __post_init__(self) -> None:
        if self.interval_seconds is not None and not self.interval_seconds > 0:
            raise InputError(
                f"a checkpoint interval of {self.interval_seconds:g} s: more than zero"
            )

    def interval(
        self, *, write_seconds: float, persist_seconds: float, between_seconds: float
    ) -> float:
        """Seconds of work between two saves.

        Daly's interval is not shorter than one background write, so that writes do not pile up, nor
        shorter than a second; without interruptions it is a day.
        """
        if self.interval_seconds is not None:
            return self.interval_seconds
        if not math.isfinite(between_seconds):
            return DAY_SECONDS
        return max(daly_seconds(write_seconds, between_seconds), persist_seconds, 1.0)
