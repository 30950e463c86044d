"""DDP whose ranks exchange samples of uneven number, sum counts and gather objects on one of them."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.hang_scripts.planted import FlightWatch, Planted

RANKS = 4
STEPS = 6
COLLECTOR = 2


def exchange(planted: Planted, step: int) -> torch.Tensor:
    """Each rank keeps one sample and gives away as many as its number says."""
    rank = dist.get_rank()
    given = [1 + (rank + other) % 2 for other in range(RANKS)]
    received = list(given)  # the rule is symmetric
    if planted.wrong("shapes", step):
        given[(rank + 1) % RANKS] += 3
    samples = torch.randn(sum(given), 8)
    own = torch.empty(sum(received), 8)
    dist.all_to_all_single(own, samples, received, given)
    return own


def count(own: torch.Tensor, planted: Planted, step: int) -> None:
    seen = torch.tensor([float(len(own)), 1.0])
    if planted.wrong("kinds", step):
        dist.all_reduce(seen)
    else:
        dist.reduce(seen, COLLECTOR)


def describe(step: int) -> None:
    there = dist.get_rank() == COLLECTOR
    lists: list[object] | None = [None] * RANKS if there else None
    dist.gather_object({"step": step, "rank": dist.get_rank()}, lists, dst=COLLECTOR)


def train(planted: Planted, watch: FlightWatch) -> None:
    outer = [dist.new_group([0, 3]), dist.new_group([1, 2])][dist.get_rank() in (1, 2)]
    net = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        if planted.wrong("batches", step) or planted.wrong("leaves", step):
            break
        planted.at("loader", step)
        if planted.wrong("skips", step):
            continue
        own = exchange(planted, step)
        planted.at("forward", step)
        loss = model(own).square().mean()
        planted.at("collective", step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if planted.wrong("order", step):
            describe(step)
            count(own, planted, step)
        else:
            count(own, planted, step)
            describe(step)
        planted.at("subgroup", step)
        dist.all_gather([torch.empty(3) for _ in range(2)], torch.ones(3), group=outer)
        if planted.wrong("branch", step):
            count(own, planted, step)
        planted.at("save", step)
        dist.barrier()
        watch.step_done()
    if not planted.wrong("leaves", planted.step):
        dist.all_reduce(torch.ones(1))


def main(planted: Planted, folder: Path) -> None:
    dist.init_process_group("gloo", timeout=planted.timeout)
    with FlightWatch(folder, planted) as watch:
        train(planted, watch)
