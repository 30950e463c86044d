"""Tensor parallel with parallelize_module; the profiler is a context around the last steps."""

import logging
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.profiler import ProfilerActivity, profile

from benchmarks.ranks_by_others.compute import sleep_function
from benchmarks.ranks_by_others.drill import Drill

gated = sleep_function("SwiGLU")


class FeedForward(nn.Module):
    """Up, a sleeping gate, down."""

    def __init__(self, dim: int, drill: Drill) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, 4 * dim, bias=False)
        self.w2 = nn.Linear(4 * dim, dim, bias=False)
        self.drill = drill

    def forward(self, x: Tensor) -> Tensor:
        """Apply."""
        out: Tensor = self.w2(gated.apply(self.w1(x), 0.014 * self.drill.stretch("slow")))
        return out


def report(logger: logging.Logger, model: nn.Module, seconds: float) -> None:
    """Log every parameter's size and wait for the dashboard."""
    for name, p in model.named_parameters():
        logger.info("%s %s", name, p.numel())
    time.sleep(seconds)


def main(drill: Drill, out: Path) -> None:
    """Train."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(*[FeedForward(64, drill) for _ in range(3)])
    for layer in model:
        parallelize_module(layer, mesh, {"w1": ColwiseParallel(), "w2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    logger = logging.getLogger("train")
    logger.addHandler(logging.FileHandler(out.parent / f"train{rank}.log"))
    logger.setLevel(logging.INFO)
    x = torch.randn(8, 64)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if drill.hits("log"):
                report(logger, model, drill.case.amount)
            drill.tick()

    train(drill.first_profiled)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        train(drill.case.profiled)
    prof.export_chrome_trace(str(out / f"tp_rank{rank}.json"))
