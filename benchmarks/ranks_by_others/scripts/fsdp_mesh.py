"""FSDP2 over a device mesh: fully sharded, or replicated over pairs of shards (HSDP)."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from benchmarks.ranks_by_others.compute import OpLayer, python_work
from benchmarks.ranks_by_others.drill import Drill

WIDTH = 240
LAYERS = 3
SECONDS = 0.012


def build(drill: Drill, replicas: int) -> nn.Module:
    """Return the sharded model."""
    layers = [OpLayer(WIDTH, lambda: SECONDS * drill.stretch("slow")) for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    shards = drill.case.ranks // replicas
    if replicas > 1:
        mesh = init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (shards,), mesh_dim_names=("shard",))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def spectral_norms(model: nn.Module) -> list[float]:
    """Return the largest singular value of every local shard of a weight."""
    weights = [p.data for p in model.parameters() if p.dim() == 2]
    shards = [w.to_local() if isinstance(w, DTensor) else w for w in weights]
    return [torch.linalg.matrix_norm(shard, ord=2).item() for shard in shards]


def train(drill: Drill, out: Path, replicas: int) -> None:
    """Train."""
    dist.init_process_group("gloo")
    model = build(drill, replicas)
    optim = torch.optim.Adam(model.parameters(), lr=1e-3)
    name = out / f"trace_rank_{dist.get_rank():02d}.json.gz"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=drill.first_profiled - 1, warmup=1, active=drill.case.profiled),
        on_trace_ready=lambda prof: prof.export_chrome_trace(str(name)),
        record_shapes=True,
    ) as prof:
        for _ in range(drill.steps):
            batch = torch.randn(8, WIDTH)
            if drill.hits("python"):
                python_work(drill.case.amount)
            with record_function("## forward ##"):
                loss = model(batch).sum()
            with record_function("## backward ##"):
                loss.backward()
            if drill.hits("norms"):
                spectral_norms(model)
            optim.step()
            optim.zero_grad()
            drill.tick()
            prof.step()


def main(drill: Drill, out: Path) -> None:
    """Train fully sharded."""
    train(drill, out, replicas=1)
