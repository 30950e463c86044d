"""torch.distributed.pipelining with the 1F1B schedule, one stage per rank."""

import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import mse_loss

from .. import work
from ..harness import Run, start, timed
from ..pipes import BATCH, WIDTH, Stage

layer = timed("TransformerStage")


def main(run: Run) -> None:
    run.init()
    micro = run.extra["micro"]
    module = Stage(run, run.rank, layer)
    stage = PipelineStage(module, run.rank, run.ranks, torch.device("cpu"))
    pipeline = Schedule1F1B(stage, n_microbatches=micro, loss_fn=mse_loss)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    for _ in run.steps():
        rows = BATCH * micro
        if run.here("python"):
            work.python_loop(run.size)
        if run.rank == 0:
            pipeline.step(torch.randn(rows, WIDTH))
        elif run.rank == run.ranks - 1:
            pipeline.step(target=torch.zeros(rows, WIDTH), losses=[])
        else:
            pipeline.step()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    start(main)
