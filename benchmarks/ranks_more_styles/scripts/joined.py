"""DDP under Join: ranks have inputs of their own sizes and may run out of them early."""

import random

import torch
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from .. import work
from ..harness import Run, start, timed

encode = timed("SpeechEncoder")


class Speech(nn.Module):
    """Its time follows the length of the batch (one unit is an average batch)."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.first, self.second = nn.Linear(40, 80), nn.Linear(80, 20)

    def forward(self, frames: torch.Tensor, units: float) -> torch.Tensor:
        seconds = 0.018 * units * self.run.pace()
        return encode(self.second(encode(torch.relu(self.first(frames)), seconds)), seconds)


def units_of(run: Run, step: int) -> float:
    """How long the batch is: equal, or any from half to one and a half (other on each rank)."""
    if not run.on("unequal"):
        return 1.0
    shares = [0.5, 0.75, 1.0, 1.25, 1.5][: run.ranks + 2]
    random.Random(step).shuffle(shares)
    return shares[run.rank]


def main(run: Run) -> None:
    run.init()
    model = DistributedDataParallel(Speech(run))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Join([model]):
        for step in run.steps():
            with record_function("utterances"):
                units = units_of(run, step)
                frames = torch.randn(int(40 * units), 40)
            with record_function("ctc"):
                loss = model(frames, units).square().mean()
            if run.here("python"):
                work.python_loop(run.size)
            with record_function("learn"):
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        for _ in range(run.rank % 2):
            model(torch.randn(4, 40), 0.1).sum().backward()


if __name__ == "__main__":
    start(main)
