"""Data parallel written by hand: gradients are copied into flat chunks that are all-reduced."""

# mypy: allow-untyped-calls

import gc
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.profiler import profile

from benchmarks.ranks_by_others.compute import FunctionLayer, sleep_function
from benchmarks.ranks_by_others.drill import Drill

CHUNKS = 3


def all_reduce_grads(params: list[nn.Parameter]) -> None:
    """Average the gradients in a few flat chunks, all in flight at once."""
    size = -(-len(params) // CHUNKS)
    groups = [params[start : start + size] for start in range(0, len(params), size)]
    flats = [_flatten_dense_tensors([p.grad for p in group]) for group in groups]
    works = [dist.all_reduce(flat, async_op=True) for flat in flats]
    for group, flat, work in zip(groups, flats, works, strict=True):
        work.wait()
        flat.div_(dist.get_world_size())
        for param, grad in zip(group, _unflatten_dense_tensors(flat, group), strict=True):
            param.grad = grad


def sgd(params: list[nn.Parameter], lr: float) -> None:
    """Step and clear."""
    with torch.no_grad():
        for p in params:
            if p.grad is not None:
                p.sub_(lr * p.grad)
                p.grad = None


def main(drill: Drill, out: Path) -> None:
    """Train."""
    dist.init_process_group("gloo")
    dense = sleep_function("FusedDense")
    width = 256
    layers = [FunctionLayer(width, lambda: 0.007 * drill.stretch("slow"), dense) for _ in range(4)]
    net = nn.Sequential(*layers, nn.Linear(width, 1))
    for p in net.parameters():
        dist.broadcast(p.data, 0)
    params = list(net.parameters())
    data = torch.randn(16, width)
    with profile():  # the first start imports modules that the collector walks from then on
        pass
    prof = profile(record_shapes=True)
    for step in range(drill.steps):
        if step == drill.first_profiled:
            prof.start()
        loss: Tensor = net(data).pow(2).mean()
        loss.backward()
        if drill.hits("gc"):
            gc.collect()
        all_reduce_grads(params)
        sgd(params, 1e-3)
        drill.tick()
    prof.stop()
    prof.export_chrome_trace(str(out / f"worker_{dist.get_rank()}.json"))
