"""A pipeline by hand, all forwards then all backwards, that keeps inputs alone and computes the
forward again in the backward; receives are posted ahead of time.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from .. import work
from ..harness import Run, start, timed
from ..pipes import BATCH, WIDTH, Stage

layer = timed("ReversibleBlock")


def boxes(micro: int, peer: int) -> list[tuple[Tensor, dist.Work]]:
    """Post the receives of all micro-batches from one neighbour."""
    made = [torch.empty(BATCH, WIDTH) for _ in range(micro)]
    return [(box, dist.irecv(box, peer)) for box in made]


def opened(box: tuple[Tensor, dist.Work]) -> Tensor:
    box[1].wait()
    return box[0]


def train_step(run: Run, module: Stage, micro: int) -> None:
    first, last = run.rank == 0, run.rank == run.ranks - 1
    inward = [] if first else boxes(micro, run.rank - 1)
    outward = [] if last else boxes(micro, run.rank + 1)
    kept, sent = [], []
    for i in range(micro):
        x = torch.randn(BATCH, WIDTH) if first else opened(inward[i])
        with torch.no_grad(), record_function("fwd"):
            y = module(x)
        kept.append(x)
        if not last:
            sent.append((dist.isend(y, run.rank + 1), y))
    for i, x in enumerate(kept):
        grad = None if last else opened(outward[i])
        with record_function("bwd"):
            x.requires_grad_()
            y = module(x)
            y.square().mean().backward() if last else y.backward(grad)
        if not first:
            sent.append((dist.isend(x.grad, run.rank - 1), x))
    for handle, _ in sent:
        handle.wait()


def main(run: Run) -> None:
    run.init()
    module = Stage(run, run.rank, layer)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    for _ in run.steps():
        train_step(run, module, run.extra["micro"])
        if run.here("norms"):
            work.norms(run.size, (p.grad for p in module.parameters()))
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    start(main)
