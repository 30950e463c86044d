"""Gains of remedies in words: `GainText`, of the window and of a step."""

from __future__ import annotations

from dataclasses import dataclass

from computeflow.ledger import Ledger
from computeflow.units import format_seconds, format_share
from computeflow.views.as_it_runs import between


@dataclass(frozen=True, slots=True, kw_only=True)
class GainText:
    ledger: Ledger
    step_seconds: float | None = None
    """Time of the step that gains are shares of; None where steps are unknown."""
    replayed: bool = False
    """Whether gains are known as shares only: seconds of the recorded window would contain the
    profiler's cost."""

    def text(self, middle: float, low: float | None, high: float | None) -> str:
        """`2.1 s of GPU time in the window (1.6 s to 2.2 s), 90 ms a step (67 to 91 ms)`."""
        whole = "GPU time in the window"
        if self.ledger.on_host:
            whole = "the window, summed over ranks" if self.ledger.gpus > 1 else "the window"
        kind = "the time" if self.replayed else whole
        text = f"{self._amount(middle)} of {kind}"
        if low is None or high is None or low == high:
            return text + self.step(middle)
        ends = f" ({self._amount(low)} to {self._amount(high)})"
        if self.step_seconds is None:
            return text + ends
        steps = between(self._step_seconds(low), self._step_seconds(high))
        return f"{text}{ends}{self.step(middle)} ({steps})"

    def step(self, gpu_seconds: float) -> str:
        """`, 90.7 ms a step`; empty where steps are unknown."""
        if self.step_seconds is None:
            return ""
        return f", {format_seconds(self._step_seconds(gpu_seconds))} a step"

    def _amount(self, gpu_seconds: float) -> str:
        if self.replayed:
            return format_share(gpu_seconds / self.ledger.gpu_seconds)
        return format_seconds(gpu_seconds)

    def _step_seconds(self, gpu_seconds: float) -> float:
        return gpu_seconds / self.ledger.gpu_seconds * (self.step_seconds or 0.0)
