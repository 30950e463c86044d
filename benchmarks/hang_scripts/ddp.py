"""DDP: mean loss of all ranks each step, a metric in pairs of ranks, rank 0 saves."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.hang_scripts.planted import FlightWatch, Planted

RANKS = 4
STEPS = 6


def batches(planted: Planted):
    for step in range(STEPS):
        if planted.wrong("batches", step) or planted.wrong("leaves", step):
            return
        planted.at("loader", step)
        yield step, torch.randn(4, 16)


def mean_loss(loss: torch.Tensor, planted: Planted, step: int) -> None:
    total = torch.stack([loss.detach(), torch.ones(())])
    if planted.wrong("shapes", step):
        total = torch.cat([total, total])
    if planted.wrong("kinds", step):
        dist.broadcast(total, 0)
    else:
        dist.all_reduce(total)


def newest_step(step: int) -> None:
    dist.all_reduce(torch.tensor([step]), op=dist.ReduceOp.MAX)


def save(planted: Planted, step: int) -> None:
    planted.at("save", step)
    dist.barrier()


def train(planted: Planted, watch: FlightWatch) -> None:
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair = pairs[dist.get_rank() // 2]
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in batches(planted):
        if planted.wrong("skips", step):
            continue
        planted.at("forward", step)
        loss = model(batch).square().mean()
        planted.at("collective", step)
        loss.backward()
        optimizer.step()
        if planted.wrong("order", step):
            newest_step(step)
            mean_loss(loss, planted, step)
        else:
            mean_loss(loss, planted, step)
            newest_step(step)
        planted.at("subgroup", step)
        dist.all_reduce(torch.ones(2), group=pair)
        if planted.wrong("branch", step):
            dist.broadcast(torch.ones(8), dist.get_rank())
        save(planted, step)
        watch.step_done()
    if planted.wrong("leaves", planted.step):
        return
    dist.all_gather([torch.zeros(1) for _ in range(dist.get_world_size())], torch.ones(1))


def main(planted: Planted, folder: Path) -> None:
    dist.init_process_group("gloo", timeout=planted.timeout)
    with FlightWatch(folder, planted) as watch:
        train(planted, watch)
