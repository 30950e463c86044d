"""The loss that backward begins at, read without waiting for the device."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from computeflow.recorder.process_recorder import Recorder
from computeflow.recorder.steps import Step

_LEAST_NS = 1_000_000_000
"""Least time between two readings."""


class LossReadings:
    """On a host its value is there; from a device it is copied beside, and read when it has come."""

    def __init__(self, torch: Any, recorder: Recorder) -> None:
        self._torch, self._recorder = torch, recorder
        self._at = 0
        self._coming: tuple[Any, Any] | None = None
        recorder.on_step.append(self._arrived)

    def note(self, arguments: tuple[Any, ...]) -> None:
        """Called after backward with what autograd was called with."""
        now = perf_counter_ns()
        if now - self._at < _LEAST_NS or self._coming is not None:
            return
        loss: Any = arguments[0] if arguments else None
        if isinstance(loss, (tuple, list)):
            loss = loss[0] if loss else None
        if type(loss) is not self._torch.Tensor or loss.numel() != 1:
            return
        self._at = now
        if loss.device.type == "cpu":
            self._recorder.watch.step.extra["loss"] = float(loss.detach())
        elif loss.is_cuda and not self._torch.cuda.is_current_stream_capturing():
            with self._torch.no_grad():
                here = self._torch.empty((), dtype=loss.dtype, pin_memory=True)
                here.copy_(loss.detach().reshape(()), non_blocking=True)
            done = self._torch.cuda.Event()
            done.record()
            self._coming = (here, done)

    def _arrived(self, step: Step) -> None:
        if self._coming is not None and self._coming[1].query():
            step.extra["loss"] = float(self._coming[0])
            self._coming = None
