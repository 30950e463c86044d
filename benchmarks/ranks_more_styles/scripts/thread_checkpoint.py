"""Gradients averaged by hand in one flat all-reduce, an EMA copy, and checkpoints in a thread.

A rank whose disk is slow has to wait for its last checkpoint before it starts the next.
"""

import copy
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

from .. import work
from ..harness import Block, Run, start, timed

layer = timed("DiffusionBlock")


class Saver:
    """Writes a snapshot in a thread; one at a time."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.thread: threading.Thread | None = None

    def save(self, model: nn.Module) -> None:
        if self.thread is not None:
            self.thread.join()
        state = {key: value.clone() for key, value in model.state_dict().items()}
        seconds = self.run.size if self.run.here("slow-disk") else 0.0
        self.thread = threading.Thread(target=self._write, args=(state, seconds))
        self.thread.start()

    def _write(self, state: dict[str, torch.Tensor], seconds: float) -> None:
        torch.save(state, self.run.scratch / f"ema{self.run.rank}.pt")
        time.sleep(seconds)


def average(model: nn.Module) -> None:
    flat = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    dist.all_reduce(flat, async_op=True).wait()
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at : at + p.numel()].view_as(p)).div_(dist.get_world_size())
        at += p.numel()


def main(run: Run) -> None:
    run.init()
    model = nn.Sequential(*[Block(run, 32, 0.009, layer) for _ in range(4)])
    shadow = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    saver = Saver(run)
    for _ in run.steps():
        loss = model(torch.randn(8, 32)).square().mean()
        loss.backward()
        average(model)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for slow, fast in zip(shadow.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
        saver.save(shadow)
        if run.here("norms"):
            work.norms(run.size, shadow.parameters())
    saver.thread.join()


if __name__ == "__main__":
    start(main)
