"""A pipeline by torch.distributed.pipelining (1F1B), with a mean loss and a save over all ranks."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from benchmarks.hang_scripts.planted import FlightWatch, Planted

RANKS = 3
STEPS = 6
MICRO_BATCHES = 4


def loss_of(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (y - target).square().mean()


class Stage(nn.Module):
    """A stage in which a rank may be held up in the middle of the schedule."""

    def __init__(self, planted: Planted) -> None:
        super().__init__()
        self.layer, self.planted, self.step = nn.Linear(8, 8), planted, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.planted.at("forward", self.step)
        return self.layer(x).relu()


def share_loss(losses: list[torch.Tensor], planted: Planted, step: int) -> None:
    mean = torch.stack(losses).mean() if losses else torch.zeros(())
    values = mean.detach().repeat(9 if planted.wrong("shapes", step) else 2)
    if planted.wrong("order", step):
        dist.barrier()
    if planted.wrong("kinds", step):
        dist.reduce(values, 0)
    else:
        dist.all_reduce(values)


def train(planted: Planted, watch: FlightWatch) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    ends = dist.new_group([0, world - 1])
    module = Stage(planted)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    for step in range(STEPS):
        if planted.wrong("batches", step) or planted.wrong("leaves", step):
            break
        planted.at("loader", step)
        x, target = torch.randn(8, 8), torch.randn(8, 8)
        if planted.wrong("skips", step):
            continue
        module.step = step
        losses: list[torch.Tensor] = []
        last = {"target": target, "losses": losses} if rank == world - 1 else {}
        schedule.step(*([x] if rank == 0 else []), **last)
        optimizer.step()
        optimizer.zero_grad()
        planted.at("collective", step)
        share_loss(losses, planted, step)
        if planted.wrong("branch", step):
            dist.broadcast(torch.ones(5), rank)
        if rank in (0, world - 1):
            planted.at("subgroup", step)
            dist.all_reduce(torch.ones(4), group=ends)
        planted.at("save", step)
        dist.barrier()
        watch.step_done()
    if not planted.wrong("leaves", planted.step):
        dist.barrier()


def main(planted: Planted, folder: Path) -> None:
    dist.init_process_group("gloo", timeout=planted.timeout)
    with FlightWatch(folder, planted) as watch:
        train(planted, watch)
