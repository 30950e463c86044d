"""Rates that the log states, and what they imply: number of ranks, tokens per second."""

from __future__ import annotations

from computeflow.telemetry.logs.line_events import StepLine
from computeflow.telemetry.logs.logged_settings import LoggedSettings

_RATES = ("tokens_per_second", "gpu_tokens_per_second", "gpu_tflops", "mfu")
_MAX_INFERRED_RANKS = 100
"""Rates are printed with three digits: their ratio is no more precise."""
_MAX_RATE = 1e15
"""Largest rate that is believed; Llama 3 was trained at 1e7 tokens per second."""


class Throughput:
    def __init__(self, settings: LoggedSettings) -> None:
        self._settings = settings
        self._batch: int | None = None
        self._sequence: int | None = None
        self._rates: dict[str, tuple[float, int]] = {}  # sum over steps, steps
        self._claims: dict[str, tuple[float, float, int]] = {}  # sum over seconds, seconds, steps

    def take(self, step: StepLine, steps: int, seconds: float | None) -> None:
        """Add the rates of `steps` steps; `seconds` is the time of one, where known."""
        self._batch = step.batch or self._batch
        self._sequence = step.sequence or self._sequence
        for name in _RATES:
            value = getattr(step, name)
            if value is not None and 0 <= value <= _MAX_RATE:
                total, counted = self._rates.get(name, (0.0, 0))
                self._rates[name] = (total + value * steps, counted + steps)
                if seconds:
                    spent = steps * seconds
                    work, timed, counted = self._claims.get(name, (0.0, 0.0, 0))
                    self._claims[name] = (work + value * spent, timed + spent, counted + steps)

    @property
    def batch(self) -> int | None:
        return self._batch or self._settings.number("batch")

    @property
    def sequence(self) -> int | None:
        return self._sequence or self._settings.number("sequence")

    @property
    def world_size(self) -> int | None:
        """Ranks as stated, or as ratios in the log imply; None where neither is there."""
        if self._settings.worlds:
            return max(self._settings.worlds)
        total, each = self.mean("tokens_per_second"), self.mean("gpu_tokens_per_second")
        if total and each and total / each < _MAX_INFERRED_RANKS:
            return round(total / each)
        return self._ranks_by_batch()

    def _ranks_by_batch(self) -> int | None:
        number = self._settings.number
        batch = number("batch")
        parts = (number("device_batch") or 0) * (number("accumulation") or 1)
        return batch // parts if batch and parts and batch % parts == 0 else None

    def mean(self, name: str) -> float | None:
        """Mean of a stated rate over steps."""
        total, steps = self._rates.get(name, (0.0, 0))
        return total / steps if steps else None

    def claim(self, name: str) -> tuple[float, float] | None:
        """A stated rate averaged over step time, and the mean seconds of those steps."""
        work, seconds, steps = self._claims.get(name, (0.0, 0.0, 0))
        return (work / seconds, seconds / steps) if work else None

    def tokens_per_second(self, step_seconds: float | None) -> float | None:
        """Rate of the whole job: stated, or tokens per step over its time."""
        stated, each = self.mean("tokens_per_second"), self.mean("gpu_tokens_per_second")
        if stated:
            return stated
        if each and self.world_size:
            return each * self.world_size
        if self.batch and self.sequence and step_seconds:
            rate = self.batch * self.sequence / step_seconds
            return rate if rate <= _MAX_RATE else None
        return None
