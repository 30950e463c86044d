"""HSDP: parameters sharded inside a group of ranks, gradients all-reduced between groups."""

import time

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.profiler import record_function

from ..harness import Run, start, timed

flash = timed("FlashAttnFunc")
ffn = timed("FusedDense")
WIDTH = 48


class Layer(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.attention, self.mlp = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pace = self.run.pace("numa")
        x = x + flash(self.attention(x), 0.01 * pace)
        return x + ffn(self.mlp(x).relu(), 0.011 * pace)


def batch(run: Run) -> torch.Tensor:
    with record_function("next batch"):
        if run.here("loader"):
            time.sleep(run.size)
        return torch.randn(4, WIDTH)


def main(run: Run) -> None:
    run.init()
    groups = 2
    mesh = init_device_mesh(
        "cpu", (groups, run.ranks // groups), mesh_dim_names=("replicate", "shard")
    )
    model = nn.Sequential(*[Layer(run) for _ in range(2)])
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    for _ in run.steps():
        x = batch(run)
        with record_function("forward"):
            loss = model(x).square().mean()
        with record_function("backward"):
            loss.backward()
        with record_function("update"):
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    start(main)
