"""FSDP2 over the default group: sharded layers, the norm of the gradients, a mean loss, a save."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.hang_scripts.planted import FlightWatch, Planted

RANKS = 4
STEPS = 6


def sharded_model() -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def next_batch(planted: Planted, step: int) -> torch.Tensor:
    planted.at("loader", step)
    return torch.randn(4, 16)


def log_metrics(loss: torch.Tensor, planted: Planted, step: int) -> None:
    values = torch.stack([loss.detach(), torch.ones(())])
    if planted.wrong("shapes", step):
        values = values.repeat(3)
    if planted.wrong("order", step):
        dist.broadcast(torch.ones(4), 0)
        dist.all_reduce(values)
    elif planted.wrong("kinds", step):
        dist.all_gather([torch.zeros_like(values) for _ in range(RANKS)], values)
        dist.broadcast(torch.ones(4), 0)
    else:
        dist.all_reduce(values)
        dist.broadcast(torch.ones(4), 0)


def train(planted: Planted, watch: FlightWatch) -> None:
    odd = dist.get_rank() % 2
    subgroup = [dist.new_group([0, 2]), dist.new_group([1, 3])][odd]
    model = sharded_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        if planted.wrong("batches", step) or planted.wrong("leaves", step):
            break
        x = next_batch(planted, step)
        if planted.wrong("skips", step):
            continue
        planted.at("forward", step)
        loss = model(x).square().mean()
        if planted.wrong("branch", step):
            model(x)
        planted.at("collective", step)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        log_metrics(loss, planted, step)
        planted.at("subgroup", step)
        dist.all_reduce(torch.ones(3), group=subgroup)
        planted.at("save", step)
        dist.barrier()
        watch.step_done()
    if not planted.wrong("leaves", planted.step):
        dist.barrier()


def main(planted: Planted, folder: Path) -> None:
    dist.init_process_group("gloo", timeout=planted.timeout)
    with FlightWatch(folder, planted) as watch:
        train(planted, watch)
