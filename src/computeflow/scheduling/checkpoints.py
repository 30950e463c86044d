"""How often to save: a stated interval, or the one that Daly's formula gives
(`economics.checkpoint_intervals`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from computeflow.economics.checkpoint_intervals import daly_seconds
from computeflow.errors import InputError
from computeflow.units import DAY_SECONDS


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
