"""Tensor parallel by hand (pairs of ranks), data parallel over the pairs, as Megatron does it."""

# mypy: allow-untyped-calls

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from benchmarks.ranks_by_others.compute import block
from benchmarks.ranks_by_others.drill import Drill

TP = 2
HIDDEN = 128
SECONDS = 0.012


class CopyToTensorRegion(Function):
    """Identity forward, all-reduce backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        """Return the input."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Sum the gradient over the group."""
        grad = grads[0].contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class ReduceFromTensorRegion(Function):
    """All-reduce forward, identity backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        """Sum over the group."""
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Return the gradient."""
        return grads[0], None


class ParallelMLP(nn.Module):
    """Column-parallel, then row-parallel."""

    def __init__(self, drill: Drill, group: Any) -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(HIDDEN, 4 * HIDDEN // TP)
        self.dense_4h_to_h = nn.Linear(4 * HIDDEN // TP, HIDDEN, bias=False)
        self.drill = drill
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        """Apply both halves with a residual."""
        y = self.dense_h_to_4h(CopyToTensorRegion.apply(x, self.group))
        y = block(torch.nn.functional.gelu(y), SECONDS * self.drill.stretch("slow"))
        out: Tensor = x + ReduceFromTensorRegion.apply(self.dense_4h_to_h(y), self.group)
        return out


def my_group(groups: list[list[int]], rank: int) -> Any:
    """Create all groups and return the one of this rank."""
    mine = None
    for ranks in groups:
        group = dist.new_group(ranks)
        if rank in ranks:
            mine = group
    return mine


def allreduce_gradients(model: nn.Module, group: Any) -> None:
    """Average gradients over the data-parallel ranks, tensor by tensor."""
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad, group=group)
            p.grad /= dist.get_world_size(group)


@torch.no_grad()
def evaluate(model: nn.Module, iters: int) -> None:
    """Run some validation batches on this replica."""
    for _ in range(iters):
        model(torch.ones(4, HIDDEN))


def main(drill: Drill, out: Path) -> None:
    """Train."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    tp = my_group([list(range(s, s + TP)) for s in range(0, world, TP)], rank)
    dp = my_group([list(range(s, world, TP)) for s in range(TP)], rank)
    torch.manual_seed(rank // TP)
    model = nn.Sequential(*[ParallelMLP(drill, tp) for _ in range(3)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=drill.first_profiled - 1, warmup=1, active=drill.case.profiled),
        on_trace_ready=lambda p: p.export_chrome_trace(str(out / f"megatron-rank-{rank}.json.gz")),
    ) as prof:
        for _ in range(drill.steps):
            if drill.hits("evaluate"):
                with record_function("evaluate"):
                    evaluate(model, int(drill.case.amount))
            with record_function("forward-backward"):
                model(torch.ones(4, HIDDEN)).square().mean().backward()
            with record_function("grads-all-reduce"):
                allreduce_gradients(model, dp)
            with record_function("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            drill.tick()
            prof.step()
