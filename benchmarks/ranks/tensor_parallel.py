"""Scripts under tensor parallelism by `parallelize_module`."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader

from benchmarks.ranks.cases import Case
from benchmarks.ranks.data_parallel import BATCH, WIDTH, Samples, TokenStream
from benchmarks.ranks.faults import Fault
from benchmarks.ranks.layers import TimedKernel
from benchmarks.ranks.meter import Meter


class Mlp(nn.Module):
    """Two linear layers, one split by columns, one by rows, with a timed kernel between."""

    def __init__(self, case: Case, fault: Fault, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.seconds, self.factor = case.layer_seconds, fault.factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = TimedKernel.apply(self.up(x), self.seconds, self.factor)
        y: torch.Tensor = self.down(torch.relu(hidden))
        return y


def tensor_mlp(case: Case, fault: Fault, meter: Meter) -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (case.ranks,))
    torch.manual_seed(0)  # the same batch on every rank
    model = nn.Sequential(*(Mlp(case, fault, WIDTH) for _ in range(case.layers)))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for x in DataLoader(Samples(fault), batch_size=BATCH):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        fault.after_step(model)
        meter.end_step()
        if meter.done:
            break
    dist.destroy_process_group()


class Block(nn.Module):
    """Attention with its heads split over the ranks, then a split MLP."""

    def __init__(self, case: Case, fault: Fault, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.mlp = Mlp(case, fault, width)
        self.head_width = width // heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        z: torch.Tensor = x + self.mlp(x)
        return z


def tensor_transformer(case: Case, fault: Fault, meter: Meter) -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (case.ranks,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(512, WIDTH), *(Block(case, fault, WIDTH, 8) for _ in range(case.layers))
    )
    plan: dict[str, ParallelStyle] = {
        **{name: ColwiseParallel() for name in ("q", "k", "v", "mlp.up")},
        **{name: RowwiseParallel() for name in ("out", "mlp.down")},
    }
    for block in list(model)[1:]:
        parallelize_module(block, mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for ids in DataLoader(TokenStream(fault, 33, 512), batch_size=None):
        model(ids).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        fault.after_step(model)
        meter.end_step()
        if meter.done:
            break
    dist.destroy_process_group()
