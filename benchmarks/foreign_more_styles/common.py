"""What all scripts share: the size they run in, the case and the watch that counts their steps."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from benchmarks.foreign.loops import EnoughError, Profiling, Watch

T = TypeVar("T")
_tiny = False


@dataclass(frozen=True, kw_only=True)
class Case:
    """One recording: what the script is told to do, and what it is told for the same job without it."""

    name: str
    cause: str = "none"
    wrong: str = ""
    right: str = ""
    cycle: int = 1
    """The mistake comes back every so many steps."""
    stack: bool = False
    limit_seconds: float = 60


def be_tiny() -> None:
    global _tiny
    _tiny = True


def is_tiny() -> bool:
    return _tiny


def device() -> str:
    return "cpu" if _tiny else "cuda"


def pick(real: T, tiny: T) -> T:
    """The size on the device, or the one with which the script is only proven to run."""
    return tiny if _tiny else real


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if _tiny else tensor.pin_memory()


class CyclicWatch(Watch):
    """Repeats of whole cycles, so that each has the mistake equally often."""

    def __init__(self, trace: str | None, cycle: int, profiling: Profiling) -> None:
        super().__init__(trace, repeat_seconds=0.6, profiling=profiling)
        self._cycle = cycle

    def step(self) -> None:
        super().step()
        if self._steps == self.warm:
            self._span = -(-self._span // self._cycle) * self._cycle


class HostWatch(CyclicWatch):
    """For a machine without a device: few steps, timed by the host's clock."""

    def step(self) -> None:
        self._steps += 1
        if self._profiler is not None:
            self._profiled_step()
        elif self._steps == 1:
            self._began = time.perf_counter()
        elif (self._steps - 1) % self._cycle == 0:
            now = time.perf_counter()
            self.seconds.append((now - self._began) / self._cycle)
            self._began = now
            if len(self.seconds) == self.repeats:
                self._after_repeats()

    def _after_repeats(self) -> None:
        if self.trace is None:
            raise EnoughError
        self._profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            schedule=torch.profiler.schedule(
                wait=0, warmup=2, active=self.profiling.steps, repeat=1
            ),
            record_shapes=self.profiling.shapes,
            with_stack=self.profiling.stack,
        )
        self._profiler.__enter__()
        self._left = 2 + self.profiling.steps


def watched(train: Any, fault: str, watch: Watch) -> Watch:
    """Run a script until its watch has seen enough."""
    torch.manual_seed(1234)
    with contextlib.suppress(EnoughError):
        train(watch, fault)
    if not watch.seconds:
        raise RuntimeError("the script ended before the watch had seen enough")
    return watch
