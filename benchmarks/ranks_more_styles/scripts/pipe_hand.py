"""A 1F1B pipeline by hand: isend and irecv, no schedule object."""

import time

import torch
import torch.distributed as dist
from torch import Tensor

from .. import work
from ..harness import Run, start, timed_op
from ..pipes import BATCH, WIDTH, Stage

layer = timed_op("handmade::stage")


class Worker:
    """One stage: what is in flight and where it goes."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.module = Stage(run, run.rank, layer)
        self.first, self.last = run.rank == 0, run.rank == run.ranks - 1
        self.flying: list[tuple[Tensor, Tensor]] = []
        self.sent: list[tuple[dist.Work, Tensor]] = []

    def _receive(self, peer: int) -> Tensor:
        box = torch.empty(BATCH, WIDTH)
        dist.irecv(box, peer).wait()
        return box

    def _send(self, x: Tensor, peer: int) -> None:
        self.sent.append((dist.isend(x, peer), x))

    def forward(self) -> None:
        x = torch.randn(BATCH, WIDTH) if self.first else self._receive(self.run.rank - 1)
        x.requires_grad_()
        y = self.module(x)
        self.flying.append((x, y))
        if not self.last:
            self._send(y.detach(), self.run.rank + 1)

    def backward(self) -> None:
        x, y = self.flying.pop(0)
        if self.last:
            y.square().mean().backward()
        else:
            y.backward(self._receive(self.run.rank + 1))
        if not self.first:
            self._send(x.grad, self.run.rank - 1)

    def step(self, micro: int) -> None:
        warm = min(self.run.ranks - self.run.rank - 1, micro)
        for _ in range(warm):
            self.forward()
        for _ in range(micro - warm):
            self.forward()
            self.backward()
        for _ in range(warm):
            self.backward()
        for handle, _ in self.sent:
            handle.wait()
        self.sent.clear()


def main(run: Run) -> None:
    run.init()
    worker = Worker(run)
    optimizer = torch.optim.Adam(worker.module.parameters(), lr=1e-3)
    for _ in run.steps():
        if run.here("loader"):
            time.sleep(run.size)
        worker.step(run.extra["micro"])
        optimizer.step()
        optimizer.zero_grad()
        if run.here("save"):
            work.save(run.size, worker.module.state_dict(), run.scratch / "stage.pt")


if __name__ == "__main__":
    start(main)
