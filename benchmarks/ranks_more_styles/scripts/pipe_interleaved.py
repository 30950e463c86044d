"""torch.distributed.pipelining with several stages per rank: interleaved 1F1B or looped BFS."""

import torch
from torch.distributed.pipelining import (
    PipelineStage,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
)
from torch.nn.functional import mse_loss
from torch.profiler import record_function

from .. import work
from ..harness import Run, start, timed
from ..pipes import BATCH, WIDTH, Stage

layer = timed("VirtualStage")
SCHEDULES = {"interleaved": ScheduleInterleaved1F1B, "looped-bfs": ScheduleLoopedBFS}


def main(run: Run) -> None:
    run.init()
    micro, count = run.extra["micro"], len(run.extra["stages"])
    mine = range(run.rank, count, run.ranks)
    modules = [Stage(run, index, layer) for index in mine]
    stages = [
        PipelineStage(module, index, count, torch.device("cpu"))
        for module, index in zip(modules, mine, strict=True)
    ]
    kind = SCHEDULES[run.extra["schedule"]]
    pipeline = kind(stages, n_microbatches=micro, loss_fn=mse_loss)
    optimizer = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.01)
    for step in run.steps():
        rows = BATCH * micro
        args = (torch.randn(rows, WIDTH),) if run.rank == 0 else ()
        with record_function("pipeline"):
            if run.rank == run.ranks - 1:
                pipeline.step(*args, target=torch.zeros(rows, WIDTH), losses=[])
            else:
                pipeline.step(*args)
        with record_function("optim"):
            optimizer.step()
            optimizer.zero_grad()
        if run.here("log"):
            work.log_json(run.size, step, run.scratch / "losses.jsonl")


if __name__ == "__main__":
    start(main)
