"""Injected faults. Each is a real slowdown of a real run, of a known size."""

from __future__ import annotations

import gc
import os
import random
import time

import torch
from torch import Tensor, nn

from computeflow.lab.trainer.trainer_settings import TrainerSettings


class FaultInjector:
    """Injects the faults of one rank, at the points where the trainer calls it."""

    def __init__(self, settings: TrainerSettings, rank: int, device: torch.device) -> None:
        self.faults = [f for f in settings.faults if f.rank in (None, rank)]
        self.device = device
        drawer = rank if settings.lengths_of < 0 else settings.lengths_of
        self.draw = random.Random(f"{settings.seed} {drawer} lengths")
        if self._severity("gc-storm", 10**9):
            gc.freeze()  # or a collection would scan the whole program, not only the storm's objects
        self.cycles_per_second = 1e9
        if device.type == "cuda" and self._severity("slow-rank", 10**9):
            self.cycles_per_second = _cycles_per_second()

    def _severity(self, kind: str, step: int) -> float:
        return sum(f.severity for f in self.faults if f.kind == kind and step >= f.step)

    def before_step(self, step: int) -> None:
        if self._severity("die", step):
            os._exit(13)
        while self._severity("hang", step):
            time.sleep(60)
        if thousands := self._severity("gc-storm", step):
            _make_garbage(round(1000 * thousands))
            gc.collect()
        if seconds := self._severity("slow-rank", step):
            if self.device.type == "cuda":
                torch.cuda._sleep(round(seconds * self.cycles_per_second))
            else:
                time.sleep(seconds)

    def on_micro_batch(self, step: int) -> None:
        if megabytes := self._severity("pageable-copy", step):
            torch.ones(round(megabytes * 2**20), dtype=torch.uint8).to(self.device)

    def on_model(self, model: nn.Module) -> None:
        """Host syncs: the CPU reads a value from the first blocks' output, and so waits for the
        GPU.
        """
        count = round(self._severity("host-sync", 10**9))
        for block in list(model.blocks)[:count]:  # type: ignore[arg-type]
            block.register_forward_hook(lambda _module, _inputs, output: _read_one(output))

    def cut(self, batch: Tensor, step: int) -> Tensor:
        """Unequal lengths: a micro-batch shortened by eighths of the full length."""
        spread = self._severity("unequal-lengths", step)
        if not spread:
            return batch
        eighth = max((batch.shape[1] - 1) // 8, 1)
        length = round(8 * (1 - spread * self.draw.random())) * eighth
        return batch[:, : max(length, eighth) + 1]

    def on_checkpoint(self, step: int) -> None:
        time.sleep(self._severity("checkpoint-stall", step))


def _read_one(output: Tensor) -> None:
    output[0, 0, 0].item()


def _make_garbage(count: int) -> None:
    for _ in range(count):
        ring: list[object] = []
        ring.append(ring)


def _cycles_per_second() -> float:
    """Cycles per second of torch.cuda._sleep, which follow the device's current clock."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(10_000_000)
    start.record()
    torch.cuda._sleep(100_000_000)
    end.record()
    end.synchronize()
    return 100_000_000 / (start.elapsed_time(end) / 1000)
