"""Sequence parallel: keys and values go round a ring while each rank works on its block."""

# mypy: allow-untyped-calls

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.ranks_by_others.drill import Drill

SHAPE = (1, 64, 64)


def go_round(kv: Tensor, seconds: float) -> Tensor:
    """Work on each block that comes by, passing it on meanwhile."""
    rank, world = dist.get_rank(), dist.get_world_size()
    total = torch.zeros_like(kv)
    for turn in range(world):
        works: list[Any] = []
        incoming = torch.empty_like(kv)
        if turn < world - 1:
            works.append(dist.isend(kv, (rank + 1) % world))
            works.append(dist.irecv(incoming, (rank - 1) % world))
        time.sleep(seconds)
        total += torch.softmax(kv, dim=-1)
        for work in works:
            work.wait()
        kv = incoming
    return total


class RingAttention(Function):
    """Attention over the whole sequence, one block at a time."""

    @staticmethod
    def forward(ctx: Any, kv: Tensor, seconds: float) -> Tensor:
        """Go round once."""
        ctx.seconds = seconds
        return go_round(kv.detach().contiguous(), seconds)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Go round again, twice as long."""
        return go_round(grads[0].contiguous(), 2 * ctx.seconds), None


class Layer(nn.Module):
    """Projection and ring attention."""

    def __init__(self, drill: Drill) -> None:
        super().__init__()
        self.proj = nn.Linear(64, 64)
        self.drill = drill

    def forward(self, x: Tensor) -> Tensor:
        """Apply with a residual."""
        out: Tensor = x + RingAttention.apply(self.proj(x), 0.006 * self.drill.stretch("slow"))
        return out


def sample_text(model: nn.Module, tokens: int) -> None:
    """Decode some tokens with this rank's weights alone."""
    with torch.no_grad():
        for _ in range(tokens):
            for layer in model.children():
                layer.get_submodule("proj")(torch.randn(1, 64))
            time.sleep(0.004)


def main(drill: Drill, out: Path) -> None:
    """Train."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Sequential(Layer(drill), Layer(drill))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=drill.first_profiled - 1, warmup=1, active=drill.case.profiled),
        on_trace_ready=lambda p: p.export_chrome_trace(str(out / f"sp_rank{rank}.json.gz")),
        record_shapes=True,
        with_stack=True,
    ) as prof:
        for _ in range(drill.steps):
            model(torch.randn(SHAPE)).square().mean().backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
            optimizer.step()
            optimizer.zero_grad()
            if drill.hits("evaluate"):
                sample_text(model, int(drill.case.amount))
            drill.tick()
            prof.step()
