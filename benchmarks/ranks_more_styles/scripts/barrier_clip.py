"""No DDP: gradients all-reduced one by one from hooks, a clip by the global norm, and a barrier
in every step.
"""

import time

import torch
import torch.distributed as dist
from torch import nn

from .. import work
from ..harness import Block, Run, start, timed_op

layer = timed_op("kernels::fused_layer")


def attach(model: nn.Module, pending: list[dist.Work]) -> None:
    """All-reduce a gradient as soon as it is there."""
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(
            lambda p: pending.append(dist.all_reduce(p.grad, async_op=True))
        )


def clip(model: nn.Module, most: float) -> None:
    """Clip by the norm over all ranks."""
    total = torch.stack([p.grad.square().sum() for p in model.parameters()]).sum()
    dist.all_reduce(total)
    scale = (most / (total.sqrt() + 1e-6)).clamp(max=1.0)
    for p in model.parameters():
        p.grad.mul_(scale)


def main(run: Run) -> None:
    run.init()
    model = nn.Sequential(*[Block(run, 40, 0.007, layer) for _ in range(5)])
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    pending: list[dist.Work] = []
    attach(model, pending)
    for _ in run.steps():
        loss = model(torch.randn(8, 40)).square().mean()
        loss.backward()
        for handle in pending:
            handle.wait()
        pending.clear()
        clip(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if run.here("metrics"):
            work.confusion(run.size)
        if run.here("barrier"):
            time.sleep(run.size)
        dist.barrier()


if __name__ == "__main__":
    start(main)
