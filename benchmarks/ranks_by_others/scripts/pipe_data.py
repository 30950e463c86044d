"""Pipeline times data parallel: 1F1B by hand with batched isend/irecv, then gradients reduced.

Rank r holds stage r // 2 of replica r % 2.
"""

# mypy: allow-untyped-calls

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.ranks_by_others.compute import FunctionLayer, sleep_function
from benchmarks.ranks_by_others.drill import Drill

REPLICAS = 2
SHAPE = (4, 64)


class Neighbours:
    """Exchanges activations and gradients with the stages before and behind."""

    def __init__(self) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        self.stage, self.stages = rank // REPLICAS, world // REPLICAS
        self.before = rank - REPLICAS if self.stage > 0 else None
        self.behind = rank + REPLICAS if self.stage < self.stages - 1 else None

    def exchange(
        self,
        *,
        forward: Tensor | None = None,
        backward: Tensor | None = None,
        take_forward: bool = False,
        take_backward: bool = False,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Send and receive at once; return what came from before and from behind."""
        ops = []
        from_before = torch.empty(SHAPE) if take_forward and self.before is not None else None
        from_behind = torch.empty(SHAPE) if take_backward and self.behind is not None else None
        if forward is not None and self.behind is not None:
            ops.append(dist.P2POp(dist.isend, forward.detach(), self.behind))
        if from_before is not None:
            ops.append(dist.P2POp(dist.irecv, from_before, self.before))
        if backward is not None and self.before is not None:
            ops.append(dist.P2POp(dist.isend, backward, self.before))
        if from_behind is not None:
            ops.append(dist.P2POp(dist.irecv, from_behind, self.behind))
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()
        return from_before, from_behind


def run_backward(x: Tensor, y: Tensor, grad: Tensor | None) -> Tensor | None:
    """Return the gradient of the stage's input."""
    y.backward(torch.ones_like(y) if grad is None else grad)
    return x.grad


def one_f_one_b(layer: torch.nn.Module, near: Neighbours, micro_batches: int) -> None:
    """Run one step: warm-up forwards, one forward and one backward by turns, cool-down."""
    held: list[tuple[Tensor, Tensor]] = []
    warm = min(near.stages - near.stage - 1, micro_batches)

    def forward(x: Tensor | None) -> Tensor:
        x = (torch.randn(SHAPE) if x is None else x).requires_grad_()
        y: Tensor = layer(x)
        held.append((x, y))
        return y

    for _ in range(warm):
        x, _ = near.exchange(take_forward=True)
        near.exchange(forward=forward(x))
    x, _ = near.exchange(take_forward=True)
    for index in range(micro_batches - warm):
        y = forward(x)
        _, grad = near.exchange(forward=y, take_backward=True)
        grad_in = run_backward(*held.pop(0), grad)
        last = index == micro_batches - warm - 1
        x, _ = near.exchange(backward=grad_in, take_forward=not last)
    for _ in range(warm):
        _, grad = near.exchange(take_backward=True)
        near.exchange(backward=run_backward(*held.pop(0), grad))


def replica_group() -> Any:
    """Return the group of the ranks with the same stage."""
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group([s, s + 1]) for s in range(0, world, REPLICAS)]
    return groups[rank // REPLICAS]


def save(layer: torch.nn.Module, path: Path) -> None:
    """Save the stage with a large optimizer state and remove the file."""
    state = {"layer": layer.state_dict(), "exp_avg": torch.zeros(12_000_000)}
    torch.save(state, path)
    path.unlink()


def main(drill: Drill, out: Path) -> None:
    """Train."""
    dist.init_process_group("gloo")
    near, group = Neighbours(), replica_group()
    seconds = drill.case.stage_seconds[near.stage]
    function = sleep_function("DecoderStage")
    layer = FunctionLayer(SHAPE[1], lambda: seconds * drill.stretch("slow"), function)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-4)
    name = f"stage{near.stage}_replica{drill.rank % REPLICAS}_{os.getpid()}.json.gz"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=drill.first_profiled - 1, warmup=1, active=drill.case.profiled),
        on_trace_ready=lambda p: p.export_chrome_trace(str(out / name)),
        record_shapes=True,
    ) as prof:
        for _ in range(drill.steps):
            one_f_one_b(layer, near, drill.case.micro_batches)
            for p in layer.parameters():
                dist.all_reduce(p.grad, group=group)
            optimizer.step()
            optimizer.zero_grad()
            if drill.hits("save"):
                save(layer, out.parent / f"stage{near.stage}.pt")
            drill.tick()
            prof.step()
