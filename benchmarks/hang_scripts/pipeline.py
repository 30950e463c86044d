"""A pipeline by hand over send and recv in the default group; the last stage spreads the loss."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.hang_scripts.planted import FlightWatch, Planted

RANKS = 4
STEPS = 6
MICRO_BATCHES = 2


def forward(stage: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank > 0:
        dist.recv(x, rank - 1)
    x.requires_grad_(rank > 0)
    y = stage(x)
    if rank < last:
        dist.send(y.detach(), rank + 1)
    return x, y


def backward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    loss = torch.zeros(1)
    if rank < last:
        gradient = torch.empty_like(y)
        dist.recv(gradient, rank + 1)
        y.backward(gradient)
    else:
        loss = y.square().mean().reshape(1)
        loss.backward()
    if rank > 0:
        dist.send(x.grad, rank - 1)
    return loss.detach()


def spread(loss: torch.Tensor, planted: Planted, step: int) -> None:
    if planted.wrong("shapes", step):
        loss = loss.repeat(5)
    if planted.wrong("kinds", step):
        dist.all_gather([torch.zeros_like(loss) for _ in range(RANKS)], loss)
        return
    if planted.wrong("order", step):
        dist.barrier()
    dist.all_reduce(loss)


def one_step(stage: nn.Module, planted: Planted, step: int) -> torch.Tensor:
    pairs, loss = [], torch.zeros(1)
    for _ in range(MICRO_BATCHES):
        planted.at("loader", step)
        pairs.append(forward(stage, torch.randn(4, 16)))
    planted.at("forward", step)
    for x, y in pairs:
        loss = loss + backward(x, y)
    return loss


def train(planted: Planted, watch: FlightWatch) -> None:
    ends = dist.new_group([0, dist.get_world_size() - 1])
    stage = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
    for step in range(STEPS):
        if planted.wrong("batches", step) or planted.wrong("leaves", step):
            break
        if planted.wrong("skips", step):
            continue
        loss = one_step(stage, planted, step)
        optimizer.step()
        planted.at("collective", step)
        spread(loss, planted, step)
        if planted.wrong("branch", step):
            dist.broadcast(loss, dist.get_rank())
        if dist.get_rank() in (0, dist.get_world_size() - 1):
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
