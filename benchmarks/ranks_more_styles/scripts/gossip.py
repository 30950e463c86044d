"""Decentralised training: no collective at all, each rank averages weights with its neighbours."""

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import record_function

from .. import work
from ..harness import Block, Run, start, timed

layer = timed("LocalTower")


def exchange(flat: torch.Tensor) -> torch.Tensor:
    """The mean of this rank's weights and its two neighbours'."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    one, two = torch.empty_like(flat), torch.empty_like(flat)
    handles = [
        dist.isend(flat, left, tag=1),
        dist.isend(flat, right, tag=2),
        dist.irecv(one, left, tag=2),
        dist.irecv(two, right, tag=1),
    ]
    for handle in handles:
        handle.wait()
    return (flat + one + two) / 3


def main(run: Run) -> None:
    run.init()
    model = nn.Sequential(*[Block(run, 24, 0.012, layer) for _ in range(3)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in run.steps():
        with record_function("sgd"):
            model(torch.randn(8, 24)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        if run.here("python"):
            work.python_loop(run.size)
        with record_function("talk to neighbours"):
            flat = nn.utils.parameters_to_vector(model.parameters()).detach()
            nn.utils.vector_to_parameters(exchange(flat), model.parameters())


if __name__ == "__main__":
    start(main)
