"""Megatron's sequence parallel: gather the sequence before a block, scatter its sum after it."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .. import work
from ..harness import Run, start, timed

attention = timed("CoreAttention")
mlp = timed("SwiGLU")
WIDTH = 64


def _gather(x: Tensor) -> Tensor:
    out = x.new_empty(x.shape[0] * dist.get_world_size(), *x.shape[1:])
    dist.all_gather_into_tensor(out, x.contiguous())
    return out


def _scatter(x: Tensor) -> Tensor:
    out = x.new_empty(x.shape[0] // dist.get_world_size(), *x.shape[1:])
    dist.reduce_scatter_tensor(out, x.contiguous())
    return out


class GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _gather(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _scatter(grad)


class ScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _scatter(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _gather(grad)


class Layer(nn.Module):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        share = WIDTH // run.ranks
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, share), nn.Linear(share, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, share), nn.Linear(share, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        pace = self.run.pace()
        whole = GatherSequence.apply(self.norm(x))
        x = x + ScatterSequence.apply(self.out(attention(self.qkv(whole), 0.007 * pace)))
        whole = GatherSequence.apply(self.norm(x))
        return x + ScatterSequence.apply(self.down(mlp(self.up(whole), 0.008 * pace)))


def main(run: Run) -> None:
    run.init()
    model = nn.Sequential(Layer(run), Layer(run))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in run.steps():
        model(torch.randn(16, WIDTH)).square().mean().backward()
        for layer in model:
            for p in layer.norm.parameters():
                dist.all_reduce(p.grad)
        if run.here("norms"):
            work.norms(run.size, (p.grad for p in model.parameters()))
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    start(main)
