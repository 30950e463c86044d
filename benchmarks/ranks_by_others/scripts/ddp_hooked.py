"""DDP with bucket views, a static graph and a compression hook; annotated, with stacks."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from benchmarks.ranks_by_others.compute import OpLayer, python_work
from benchmarks.ranks_by_others.drill import Drill

WIDTH = 192
LAYERS = 4
SECONDS = 0.008


def build(drill: Drill) -> DistributedDataParallel:
    """Return the wrapped model."""

    def seconds() -> float:
        return SECONDS * drill.stretch("slow") * drill.stretch("throttle")

    model = DistributedDataParallel(
        nn.Sequential(*[OpLayer(WIDTH, seconds) for _ in range(LAYERS)]),
        bucket_cap_mb=1,
        gradient_as_bucket_view=True,
        static_graph=True,
    )
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return model


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    """Run one step with its phases annotated."""
    with record_function("forward"):
        loss = model(batch).square().mean()
    with record_function("backward"):
        loss.backward()
    with record_function("optimizer"):
        optimizer.step()
        optimizer.zero_grad()


def main(drill: Drill, out: Path) -> None:
    """Train."""
    dist.init_process_group("gloo")
    model = build(drill)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)

    def export(prof: profile) -> None:
        prof.export_chrome_trace(str(out / f"rank{dist.get_rank()}.json.gz"))

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=drill.first_profiled - 2, warmup=2, active=drill.case.profiled),
        on_trace_ready=export,
        with_stack=True,
    ) as prof:
        for _ in range(drill.steps):
            with record_function("data"):
                batch = torch.randn(8, WIDTH)
                if drill.hits("python"):
                    python_work(drill.case.amount)
            train_step(model, optimizer, batch)
            drill.tick()
            prof.step()
