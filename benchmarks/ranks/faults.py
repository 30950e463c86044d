"""The planted faults, as user code has them: `Fault` on one rank, switched on and off by the meter."""

from __future__ import annotations

import gc
import io
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.ranks.cases import Case

NOTES = {
    "save": "save_checkpoint",
    "evaluate": "evaluate",
    "log": "log_metrics",
    "python": "update_curriculum",
}
GC_OBJECTS = 500_000
"""A heap whose collection takes about 0.17 s on the machine of the recordings."""
UNEVEN = {2: (2, 4), 4: (2, 2, 3, 5)}
"""Layers of each stage, the slowest last, where 3 each would be even."""


class RemoteFile(io.FileIO):
    """A file on a slow store: what is written arrives after `seconds`."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__(path, "w")
        self.seconds = seconds

    def close(self) -> None:
        if not self.closed:
            time.sleep(self.seconds)
        super().close()


def burn(seconds: float) -> int:
    """Plain Python work, no operators."""
    end, total = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        total += sum(range(200))
    return total


class Fault:
    """One case's fault as this rank sees it. The meter sets `on` and `step`."""

    def __init__(self, case: Case, rank: int, work: Path) -> None:
        self.case, self.rank, self.work = case, rank, work
        self.on, self.step = False, 0
        self._heap: list[Any] = []
        if case.fault == "gc" and rank == case.culprit:
            self._heap = [{"index": [i]} for i in range(GC_OBJECTS)]

    def is_here(self, *faults: str) -> bool:
        """Whether the fault is one of these, switched on, and planted on this rank."""
        here = self.rank == self.case.culprit or self.case.culprit is None
        return self.on and here and self.case.fault in faults

    def factor(self) -> float:
        """How much longer this rank's compute takes now."""
        if self.is_here("slow", "stage"):
            return 1 + self.case.amount
        if self.case.fault == "unequal":
            return self._length()
        return 1.0

    def _length(self) -> float:
        """Lengths by turns where the fault is on; else the same work spread evenly."""
        if not self.on:
            return 1 + self.case.amount / self.case.ranks
        return 1 + self.case.amount * (self.step % self.case.ranks == self.rank)

    def stage_layers(self) -> int:
        """Layers of this rank's stage: moved between stages where they are uneven."""
        case = self.case
        if not (self.on and case.fault == "uneven-stages") or case.culprit is None:
            return case.layers
        counts = UNEVEN[case.ranks]
        return counts[(self.rank - case.culprit - 1) % case.ranks]

    def load(self) -> None:
        """Called where a sample or batch is made."""
        if self.is_here("loader"):
            time.sleep(self.case.amount)

    def reduces_each_time(self) -> bool:
        return self.is_here("reduced")

    def after_backward(self, model: nn.Module) -> None:
        """A debugging aid that was left in: the spectral norm of every gradient."""
        if self.is_here("norms"):
            for parameter in model.parameters():
                if parameter.grad is not None and parameter.grad.dim() == 2:
                    torch.linalg.matrix_norm(parameter.grad, 2).item()

    def after_step(self, model: nn.Module, evaluate: Callable[[], object] | None = None) -> None:
        """What this rank does between steps, alone or before the others may go on."""
        due = self.step % self.case.every == self.case.every - 1
        kind = self.case.fault
        if due and self.is_here("save", "evaluate", "log", "metrics", "python", "gc", "barrier"):
            note = torch.profiler.record_function(NOTES.get(kind, kind))
            with note if self.case.annotated else nullcontext():
                self._work(model, evaluate)
        if kind == "barrier":
            dist.barrier()

    def _work(self, model: nn.Module, evaluate: Callable[[], object] | None) -> None:
        kind, seconds = self.case.fault, self.case.amount
        if kind == "save":
            with RemoteFile(self.work / "checkpoint.pt", seconds) as file:
                torch.save({k: v.clone() for k, v in model.state_dict().items()}, file)
        elif kind == "evaluate" and evaluate is not None:
            with torch.no_grad():
                evaluate()
        elif kind in ("log", "barrier"):
            time.sleep(seconds)
        elif kind == "metrics":
            _confusion(seconds)
        elif kind == "python":
            burn(seconds)
        elif kind == "gc":
            gc.collect()


def _confusion(seconds: float) -> torch.Tensor:
    """Metrics of the last predictions, one class after the other."""
    end = time.perf_counter() + seconds
    guesses, labels = torch.randint(0, 50, (2, 4000))
    counts = torch.zeros(50, 50)
    while time.perf_counter() < end:
        for label in range(50):
            counts[label] += torch.bincount(guesses[labels == label], minlength=50)
        sorted((guesses == labels).tolist())
    return counts
