"""DeepSpeed ZeRO stage 2 on CPU ranks."""

from pathlib import Path

import deepspeed
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.ranks_by_others.compute import OpLayer
from benchmarks.ranks_by_others.drill import Drill

WIDTH = 128
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 2, "overlap_comm": False},
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_allow_untested_optimizer": True,
}


def main(drill: Drill, out: Path) -> None:
    """Train."""
    deepspeed.init_distributed(dist_backend="gloo")
    layers = [OpLayer(WIDTH, lambda: 0.012 * drill.stretch("slow")) for _ in range(3)]
    model = nn.Sequential(*layers)
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=CONFIG
    )
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=drill.first_profiled - 1, warmup=1, active=drill.case.profiled),
        on_trace_ready=lambda p: p.export_chrome_trace(str(out / f"ds_{drill.rank}.json.gz")),
    ) as prof:
        for _ in range(drill.steps):
            loss = engine(torch.randn(4, WIDTH)).square().mean()
            engine.backward(loss)
            engine.step()
            drill.tick()
            prof.step()
