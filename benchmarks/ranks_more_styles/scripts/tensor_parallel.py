"""Tensor parallel by DTensor: column-wise then row-wise layers."""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from .. import work
from ..harness import Run, start, timed

gemm = timed("ShardedGemm")
WIDTH = 48


class FeedForward(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.run.here("python"):
            work.python_loop(self.run.size / 4)
        hidden = gemm(self.up(x).relu(), 0.009 * self.run.pace("throttle"))
        return x + self.down(hidden)


def main(run: Run) -> None:
    run.init()
    mesh = init_device_mesh("cpu", (run.ranks,))
    model = nn.Sequential(*[FeedForward(run) for _ in range(4)])
    plan = {}
    for i in range(4):
        plan[f"{i}.up"], plan[f"{i}.down"] = ColwiseParallel(), RowwiseParallel()
    parallelize_module(model, mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    for _ in run.steps():
        torch.manual_seed(run.step)
        loss = model(torch.randn(8, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    start(main)
