"""Two stages, each on two ranks: messages in groups of their own, gradients averaged by hand."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.hang_scripts.planted import FlightWatch, Planted

RANKS = 4
STEPS = 6


def pass_through(stage: nn.Module, group: dist.ProcessGroup, planted: Planted, step: int) -> None:
    """Forward and backward of one batch; the first stage sends without waiting."""
    planted.at("forward", step)
    if dist.get_rank(group) == 0:
        y = stage(torch.randn(4, 8))
        sent = dist.isend(y.detach(), group=group, group_dst=1)
        gradient = torch.empty_like(y)
        dist.recv(gradient, group=group, group_src=1)
        sent.wait()
        y.backward(gradient)
        return
    x = torch.empty(4, 8)
    dist.recv(x, group=group, group_src=0)
    x.requires_grad_()
    stage(x).square().mean().backward()
    dist.send(x.grad, group=group, group_dst=0)


def average(stage: nn.Module, group: dist.ProcessGroup, planted: Planted, step: int) -> None:
    for parameter in stage.parameters():
        gradient = parameter.grad
        if planted.wrong("shapes", step):
            gradient = torch.cat([gradient.flatten()] * 2)
        if planted.wrong("kinds", step):
            dist.all_gather([torch.zeros_like(gradient) for _ in range(2)], gradient, group=group)
        else:
            dist.all_reduce(gradient, group=group)


def train(planted: Planted, watch: FlightWatch) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stages", "replicas"))
    stages, replicas = mesh["stages"].get_group(), mesh["replicas"].get_group()
    stage = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
    for step in range(STEPS):
        if planted.wrong("batches", step) or planted.wrong("leaves", step):
            break
        planted.at("loader", step)
        if planted.wrong("skips", step):
            continue
        pass_through(stage, stages, planted, step)
        planted.at("collective", step)
        if planted.wrong("order", step):
            dist.all_reduce(torch.ones(1))
        planted.at("subgroup", step)
        average(stage, replicas, planted, step)
        optimizer.step()
        optimizer.zero_grad()
        if planted.wrong("branch", step):
            dist.all_reduce(torch.ones(3), group=replicas)
        dist.all_reduce(torch.ones(1))
        planted.at("save", step)
        dist.barrier()
        watch.step_done()
    if not planted.wrong("leaves", planted.step):
        dist.barrier()


def main(planted: Planted, folder: Path) -> None:
    dist.init_process_group("gloo", timeout=planted.timeout)
    with FlightWatch(folder, planted) as watch:
        train(planted, watch)
