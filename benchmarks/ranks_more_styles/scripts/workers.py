"""DDP fed by a DataLoader with worker processes; a slow source starves the rank."""

import multiprocessing
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from .. import work
from ..harness import Block, Run, start, timed

layer = timed("ResNetBottleneck")


class Files(Dataset):
    """Each item waits for a disk; how long is told by the training process."""

    def __init__(self, count: int, delay) -> None:
        self.count, self.delay = count, delay

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.delay.value)
        return torch.full((32,), float(index % 9))


def main(run: Run) -> None:
    run.init()
    delay = multiprocessing.Value("d", 0.002)
    batch = 4
    files = Files((run.total + 8) * batch, delay)
    loader = DataLoader(files, batch_size=batch, num_workers=1, prefetch_factor=2)
    model = DistributedDataParallel(
        nn.Sequential(*[Block(run, 32, 0.008, layer) for _ in range(4)])
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(loader)
    for _ in run.steps():
        delay.value = run.size / batch if run.here("loader") else 0.002
        loss = model(next(batches)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if run.here("metrics"):
            work.confusion(run.size)


if __name__ == "__main__":
    start(main)
