"""Step timing by marks on the device's own time line, read later: timing a step must not stop it.

On a GPU a mark is a CUDA event, on a CPU the wall clock. Marks of step n are read when step n+1 has
been launched, so that the device always has work queued.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PHASES = ("input", "copy", "forward", "backward", "optimizer", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    step: int
    seconds: float
    """Time from the end of the step before to the end of this one."""
    loss: float
    tokens: int
    phases: dict[str, float]
    """Device time between marks; `input` and `checkpoint` are host time."""


class Stopwatch:
    """Collects the marks of one step."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.device = device
        self.marks: list[tuple[str, Any, Any]] = []
        self.host: dict[str, float] = {}
        self.end: Any = None
        self.loss = torch.zeros((), pin_memory=self.on_gpu)

    def mark(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def phase(self, name: str, start: Any) -> Any:
        """Book the time since `start` on `name`; returns the mark where the next phase starts."""
        end = self.mark()
        self.marks.append((name, start, end))
        return end

    def host_phase(self, name: str, start: float) -> float:
        end = time.perf_counter()
        self.host[name] = self.host.get(name, 0.0) + end - start
        return end

    def finish(self, loss: Tensor) -> None:
        self.loss.copy_(loss.detach(), non_blocking=True)
        self.end = self.mark()

    def read(self, step: int, previous_end: Any, tokens: int) -> StepTiming:
        """Wait for this step only, then add up its phases."""
        if self.on_gpu:
            self.end.synchronize()
        phases = dict(self.host)
        for name, start, end in self.marks:
            phases[name] = phases.get(name, 0.0) + self._between(start, end)
        return StepTiming(
            step=step,
            seconds=self._between(previous_end, self.end),
            loss=float(self.loss),
            tokens=tokens,
            phases={name: phases[name] for name in PHASES if name in phases},
        )

    def _between(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / 1000 if self.on_gpu else float(end - start)
