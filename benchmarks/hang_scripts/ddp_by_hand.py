"""Data parallel by hand: each gradient reduced, work scattered and results gathered by rank 0."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.hang_scripts.planted import FlightWatch, Planted

RANKS = 4
STEPS = 6


def share_out(step: int) -> torch.Tensor:
    """Rank 0 deals out the samples of a step."""
    own = torch.empty(4, 8)
    dealt = [torch.randn(4, 8) for _ in range(RANKS)] if dist.get_rank() == 0 else None
    dist.scatter(own, dealt, src=0)
    return own


def reduce_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= RANKS


def collect(loss: torch.Tensor, planted: Planted, step: int) -> None:
    value = loss.detach().repeat(6 if planted.wrong("shapes", step) else 2)
    if planted.wrong("kinds", step):
        dist.all_reduce(value)
        return
    lists = [torch.empty_like(value) for _ in range(RANKS)] if dist.get_rank() == 0 else None
    dist.gather(value, lists, dst=0)


def agree_to_go_on() -> None:
    dist.all_reduce(torch.ones(1, dtype=torch.int64), op=dist.ReduceOp.MIN)


def train(planted: Planted, watch: FlightWatch) -> None:
    half = [dist.new_group([0, 1]), dist.new_group([2, 3])][dist.get_rank() // 2]
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        if planted.wrong("batches", step) or planted.wrong("leaves", step):
            break
        planted.at("loader", step)
        batch = share_out(step)
        if planted.wrong("skips", step):
            continue
        planted.at("forward", step)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        planted.at("collective", step)
        reduce_gradients(model)
        optimizer.step()
        planted.at("subgroup", step)
        dist.all_reduce(torch.ones(2), group=half)
        if planted.wrong("order", step):
            agree_to_go_on()
            collect(loss, planted, step)
        else:
            collect(loss, planted, step)
            agree_to_go_on()
        if planted.wrong("branch", step):
            dist.broadcast(torch.ones(3), dist.get_rank())
        planted.at("save", step)
        dist.barrier()
        watch.step_done()
    if not planted.wrong("leaves", planted.step):
        dist.barrier()


def main(planted: Planted, folder: Path) -> None:
    dist.init_process_group("gloo", timeout=planted.timeout)
    with FlightWatch(folder, planted) as watch:
        train(planted, watch)
