"""A GPipe written with blocking send and recv: all forwards, then all backwards."""

# mypy: allow-untyped-calls

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import profile, record_function

from benchmarks.ranks_by_others.compute import OpLayer
from benchmarks.ranks_by_others.drill import Drill

ROWS, WIDTH = 4, 128


class Stage:
    """One rank's part of the pipeline."""

    def __init__(self, drill: Drill) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.drill = drill
        self.layer = OpLayer(WIDTH, self.seconds)

    def micro_batches(self) -> int:
        """Return how many micro-batches this step has."""
        case = self.drill.case
        few = case.fault != "few-micro-batches" or self.drill.hits("few-micro-batches")
        return case.micro_batches if few else 4 * case.micro_batches

    def seconds(self) -> float:
        """Return the forward seconds of one micro-batch."""
        share = self.drill.case.micro_batches / self.micro_batches()
        seconds = self.drill.case.stage_seconds[self.rank] * share
        return seconds * self.drill.stretch("stage")

    def forward(self) -> tuple[Tensor, Tensor]:
        """Take a micro-batch from the stage before, pass it on; return input and output."""
        x = torch.randn(ROWS, WIDTH)
        if self.rank > 0:
            with record_function("recv activation"):
                dist.recv(x, self.rank - 1)
            x.requires_grad_()
        with record_function("stage forward"):
            y = self.layer(x)
        if self.rank < self.world - 1:
            with record_function("send activation"):
                dist.send(y.detach(), self.rank + 1)
        return x, y

    def backward(self, x: Tensor, y: Tensor) -> None:
        """Take the gradient from the stage behind and pass the input's on."""
        if self.rank < self.world - 1:
            grad = torch.empty_like(y)
            with record_function("recv gradient"):
                dist.recv(grad, self.rank + 1)
        else:
            grad = torch.ones_like(y)
        with record_function("stage backward"):
            y.backward(grad)
        if self.rank > 0 and x.grad is not None:
            with record_function("send gradient"):
                dist.send(x.grad, self.rank - 1)


def main(drill: Drill, out: Path) -> None:
    """Train."""
    dist.init_process_group("gloo")
    stage = Stage(drill)
    optimizer = torch.optim.SGD(stage.layer.parameters(), lr=1e-4)
    prof = profile()
    for step in range(drill.steps):
        if step == drill.first_profiled:
            prof.start()
        optimizer.zero_grad()
        held = [stage.forward() for _ in range(stage.micro_batches())]
        for x, y in reversed(held):
            stage.backward(x, y)
        optimizer.step()
        drill.tick()
    prof.stop()
    prof.export_chrome_trace(str(out / f"trace_{stage.rank}.json"))
