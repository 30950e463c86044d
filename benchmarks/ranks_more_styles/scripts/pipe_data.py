"""Pipelines of ScheduleGPipe in several replicas; each stage averages gradients with its twins."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.functional import mse_loss

from .. import work
from ..harness import Run, start, timed
from ..pipes import BATCH, WIDTH, Stage

layer = timed("EncoderStage")


def main(run: Run) -> None:
    run.init()
    micro, depth = run.extra["micro"], len(run.extra["stages"])
    mesh = init_device_mesh("cpu", (run.ranks // depth, depth), mesh_dim_names=("dp", "pp"))
    index = mesh["pp"].get_local_rank()
    module = Stage(run, index, layer)
    stage = PipelineStage(module, index, depth, torch.device("cpu"), group=mesh["pp"].get_group())
    pipeline = ScheduleGPipe(stage, n_microbatches=micro, loss_fn=mse_loss)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    twins = mesh["dp"].get_group()
    for _ in run.steps():
        rows = BATCH * micro
        args = (torch.randn(rows, WIDTH),) if index == 0 else ()
        if index == depth - 1:
            pipeline.step(*args, target=torch.zeros(rows, WIDTH), losses=[])
        else:
            pipeline.step(*args)
        flat = torch.cat([p.grad.reshape(-1) for p in module.parameters()])
        dist.all_reduce(flat, op=dist.ReduceOp.SUM, group=twins)
        optimizer.step()
        optimizer.zero_grad()
        if run.here("evaluate"):
            with torch.no_grad():
                for _ in range(int(run.size)):
                    module(torch.randn(BATCH, WIDTH))
        if run.here("gc"):
            work.collect(run.size)


if __name__ == "__main__":
    start(main)
