"""DDP with accumulated gradients, buffers broadcast in forward, an evaluation by objects, a save."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.hang_scripts.planted import FlightWatch, Planted

RANKS = 3
STEPS = 8
ACCUMULATED = 2


def samples(planted: Planted):
    for number in range(STEPS * ACCUMULATED):
        if number % ACCUMULATED == 0:
            planted.at("loader", number // ACCUMULATED)
        yield torch.randn(4, 8)


def evaluate(step: int) -> list[object]:
    results: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(results, {"step": step, "rank": dist.get_rank()})
    return results


def reduce_tokens(planted: Planted, step: int) -> None:
    tokens = torch.ones(6 if planted.wrong("shapes", step) else 2)
    if planted.wrong("kinds", step):
        dist.broadcast(tokens, 0)
    else:
        dist.all_reduce(tokens)


def checkpoint(planted: Planted, step: int) -> None:
    if dist.get_rank() == 0:
        planted.at("save", step)
    dist.barrier()


def optimize(model: nn.Module, data, planted: Planted, step: int) -> None:
    for index in range(ACCUMULATED):
        x = next(data)
        last = index == ACCUMULATED - 1
        with contextlib.nullcontext() if last else model.no_sync():
            if last:
                planted.at("forward", step)
            loss = model(x).square().mean()
            if last:
                planted.at("collective", step)
            loss.backward()


def train(planted: Planted, watch: FlightWatch) -> None:
    readers = dist.new_group([0, 1])
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = samples(planted)
    for step in range(STEPS):
        if planted.wrong("batches", step) or planted.wrong("leaves", step):
            break
        if planted.wrong("skips", step):
            continue  # a bad batch
        optimize(model, data, planted, step)
        optimizer.step()
        optimizer.zero_grad()
        if planted.wrong("order", step):
            evaluate(step)
            reduce_tokens(planted, step)
        else:
            reduce_tokens(planted, step)
            evaluate(step)
        if planted.wrong("branch", step):
            model(torch.randn(4, 8))
        if dist.get_rank() < 2:
            planted.at("subgroup", step)
            dist.broadcast(torch.ones(4), 0, group=readers)
        checkpoint(planted, step)
        watch.step_done()
    if not planted.wrong("leaves", planted.step):
        evaluate(STEPS)


def main(planted: Planted, folder: Path) -> None:
    dist.init_process_group("gloo", timeout=planted.timeout)
    with FlightWatch(folder, planted) as watch:
        train(planted, watch)
