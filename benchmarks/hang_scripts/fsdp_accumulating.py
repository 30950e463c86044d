"""FSDP2 with accumulated gradients and recomputed blocks; rank 0 tells the others what to do next."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from benchmarks.hang_scripts.planted import FlightWatch, Planted

RANKS = 3
STEPS = 6
MICRO_BATCHES = 2


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(12, 12) for _ in range(2))
        self.head = nn.Linear(12, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False).relu()
        return self.head(x)


def build() -> nn.Module:
    model = Model()
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def instructions(step: int) -> dict[str, int]:
    told = [{"step": step} if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(told, 0)
    return told[0]


def sum_tokens(planted: Planted, step: int) -> None:
    tokens = torch.ones(8 if planted.wrong("shapes", step) else 3)
    if planted.wrong("kinds", step):
        dist.reduce(tokens, 0)
    else:
        dist.all_reduce(tokens)


def backward(model: nn.Module, planted: Planted, step: int) -> None:
    for index in range(MICRO_BATCHES):
        last = index == MICRO_BATCHES - 1
        planted.at("loader" if last else "", step)
        x = torch.randn(2, 12)
        model.set_requires_gradient_sync(last)
        planted.at("forward" if last else "", step)
        loss = model(x).square().mean()
        planted.at("collective" if last else "", step)
        loss.backward()


def train(planted: Planted, watch: FlightWatch) -> None:
    writers = dist.new_group([0, 1])
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        if planted.wrong("batches", step) or planted.wrong("leaves", step):
            break
        if planted.wrong("skips", step):
            continue
        backward(model, planted, step)
        optimizer.step()
        optimizer.zero_grad()
        if planted.wrong("order", step):
            instructions(step)
            sum_tokens(planted, step)
        else:
            sum_tokens(planted, step)
            instructions(step)
        if planted.wrong("branch", step):
            dist.barrier()
        if dist.get_rank() < 2:
            planted.at("subgroup", step)
            dist.all_reduce(torch.ones(5), group=writers)
        planted.at("save", step)
        dist.barrier()
        watch.step_done()
    if not planted.wrong("leaves", planted.step):
        dist.all_reduce(torch.ones(1))


def main(planted: Planted, folder: Path) -> None:
    dist.init_process_group("gloo", timeout=planted.timeout)
    with FlightWatch(folder, planted) as watch:
        train(planted, watch)
