"""HSDP: layers sharded over pairs and replicated over two of them; metrics over all ranks."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.hang_scripts.planted import FlightWatch, Planted

RANKS = 4
STEPS = 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


def build(mesh: DeviceMesh) -> nn.Module:
    model = nn.Sequential(Block(), Block())
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def report(loss: torch.Tensor, planted: Planted, step: int) -> None:
    size = 7 if planted.wrong("shapes", step) else 3
    values = torch.full((size,), float(loss.detach()))
    if planted.wrong("kinds", step):
        dist.reduce(values, 0)
        return
    dist.all_reduce(values)


def train(planted: Planted, watch: FlightWatch) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    shard = mesh["shard"].get_group()
    model = build(mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        if planted.wrong("batches", step) or planted.wrong("leaves", step):
            break
        planted.at("loader", step)
        x = torch.randn(4, 8)
        if planted.wrong("skips", step):
            continue
        planted.at("forward", step)
        loss = model(x).square().mean()
        planted.at("collective", step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if planted.wrong("branch", step):
            model(x)
        planted.at("subgroup", step)
        if planted.wrong("order", step):
            report(loss, planted, step)
            dist.all_reduce(torch.ones(2), group=shard)
        else:
            dist.all_reduce(torch.ones(2), group=shard)
            report(loss, planted, step)
        planted.at("save", step)
        dist.barrier()
        watch.step_done()
    if not planted.wrong("leaves", planted.step):
        dist.barrier()


def main(planted: Planted, folder: Path) -> None:
    dist.init_process_group("gloo", timeout=planted.timeout)
    with FlightWatch(folder, planted) as watch:
        train(planted, watch)
