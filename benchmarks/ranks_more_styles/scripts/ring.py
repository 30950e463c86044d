"""Context parallel: keys and values go round a ring while each rank attends to what it holds."""

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .. import work
from ..harness import Run, start

WIDTH, ROWS = 32, 8


def turn(x: Tensor) -> tuple[Tensor, list[dist.Work]]:
    """Send to the next rank and receive from the one before."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    box = torch.empty_like(x)
    ops = [
        dist.P2POp(dist.isend, x, (rank + 1) % ranks),
        dist.P2POp(dist.irecv, box, (rank - 1) % ranks),
    ]
    return box, dist.batch_isend_irecv(ops)


class RingAttention(torch.autograd.Function):
    """Forward and backward each make a whole turn round the ring."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return RingAttention.go_round(x, seconds)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return RingAttention.go_round(grad, 2 * ctx.seconds), None

    @staticmethod
    def go_round(x: Tensor, seconds: float) -> Tensor:
        held, total = x.contiguous(), torch.zeros_like(x)
        for hop in range(dist.get_world_size()):
            last = hop == dist.get_world_size() - 1
            box, handles = (held, []) if last else turn(held)
            total += torch.ops.ringlib.block_attention(held, seconds)
            for handle in handles:
                handle.wait()
            held = box
        return total / dist.get_world_size()


@torch.library.custom_op("ringlib::block_attention", mutates_args=())
def block_attention(x: Tensor, seconds: float) -> Tensor:
    time.sleep(seconds)
    return x.clone()


class Layer(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.qkv = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        seconds = 0.016 / self.run.ranks * self.run.pace()
        return x + RingAttention.apply(self.qkv(x), seconds)


def main(run: Run) -> None:
    run.init()
    model = nn.Sequential(Layer(run), Layer(run), Layer(run))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in run.steps():
        model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        grads = [p.grad for p in model.parameters()]
        dist.all_reduce_coalesced(grads)
        optimizer.step()
        optimizer.zero_grad()
        if run.here("log"):
            work.log_json(run.size, step, run.scratch / "ring.jsonl")


if __name__ == "__main__":
    start(main)
