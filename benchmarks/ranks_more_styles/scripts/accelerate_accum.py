"""Accelerate with accumulation over micro-batches, a scheduler and gathered metrics."""

import time
from contextlib import nullcontext

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

from .. import work
from ..harness import Block, Run, start, timed

layer = timed("UNetBlock")
WIDTH, MICRO = 64, 4


class Latents(Dataset):
    def __init__(self, run: Run) -> None:
        self.run = run

    def __len__(self) -> int:
        return self.run.total * self.run.ranks * MICRO * 4

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.run.here("loader"):
            time.sleep(self.run.size / MICRO / 4)
        return torch.full((WIDTH,), float(index % 5))


def net(run: Run) -> nn.Module:
    """Small in time, but with a table large enough that its gradient costs something to send."""
    table = int(run.extra.get("table", 64))
    blocks = [Block(run, WIDTH, 0.005, layer) for _ in range(2)]
    return nn.Sequential(nn.Linear(WIDTH, table), nn.Linear(table, WIDTH), *blocks)


def main(run: Run) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO)
    model = net(run)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    loader = DataLoader(Latents(run), batch_size=4)
    model, optimizer, loader, rate = accelerator.prepare(model, optimizer, loader, rate)
    batches = iter(loader)
    for step in run.steps():
        for micro in range(MICRO):
            early = micro < MICRO - 1 and not run.on("reduced")
            with accelerator.no_sync(model) if early else nullcontext():
                loss = model(next(batches)).square().mean() / MICRO
                accelerator.backward(loss)
        optimizer.step()
        rate.step()
        optimizer.zero_grad()
        if step % 4 == 0:
            accelerator.gather(loss.detach())
        if run.here("python"):
            work.python_loop(run.size)


if __name__ == "__main__":
    start(main)
