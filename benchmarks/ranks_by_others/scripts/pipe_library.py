"""torch.distributed.pipelining: GPipe, 1F1B and Interleaved1F1B over stages that sleep."""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.ranks_by_others.compute import FunctionLayer, OpLayer, sleep_function
from benchmarks.ranks_by_others.drill import Drill

WIDTH = 64
ROWS_PER_STEP = 48


def stage_time(drill: Drill, stage: int) -> float:
    """Return a stage's forward seconds for one micro-batch in this step."""
    seconds = drill.case.stage_seconds[stage] * drill.stretch("stage")
    if drill.hits("uneven-stages"):
        seconds *= 1 + drill.case.amount * (1 if stage % 2 else -1)
    if drill.case.fault == "few-micro-batches" and not drill.hits("few-micro-batches"):
        seconds /= 4
    return seconds


def stage_module(drill: Drill, stage: int) -> nn.Module:
    """Return one stage of the model."""
    if drill.case.script == "pipe_gpipe":
        return OpLayer(WIDTH, lambda: stage_time(drill, stage))
    function = sleep_function("TransformerStage")
    return FunctionLayer(WIDTH, lambda: stage_time(drill, stage), function)


def loss_fn(output: Tensor, target: Tensor) -> Tensor:
    """Return the squared error."""
    return torch.nn.functional.mse_loss(output, target)


def build_schedule(drill: Drill, modules: dict[int, nn.Module], micro_batches: int) -> Any:
    """Return the schedule of this rank over its stages."""
    stages: list[Any] = [
        PipelineStage(module, index, drill.case.stages, torch.device("cpu"))
        for index, module in modules.items()
    ]
    if drill.case.script == "pipe_gpipe":
        return ScheduleGPipe(stages[0], micro_batches, loss_fn=loss_fn)
    if drill.case.script == "pipe_1f1b":
        return Schedule1F1B(stages[0], micro_batches, loss_fn=loss_fn)
    return ScheduleInterleaved1F1B(stages, micro_batches, loss_fn=loss_fn)


def main(drill: Drill, out: Path) -> None:
    """Train."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    modules = {i: stage_module(drill, i) for i in range(rank, drill.case.stages, world)}
    few = build_schedule(drill, modules, drill.case.micro_batches)
    many = few
    if drill.case.fault == "few-micro-batches":
        many = build_schedule(drill, modules, 4 * drill.case.micro_batches)
    parameters = [p for module in modules.values() for p in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-3)
    x, y = torch.randn(ROWS_PER_STEP, WIDTH), torch.randn(ROWS_PER_STEP, WIDTH)
    has_last = drill.case.stages - 1 in modules
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=drill.first_profiled - 1, warmup=1, active=drill.case.profiled),
        on_trace_ready=lambda p: p.export_chrome_trace(
            str(out / f"pp{rank}_pid{os.getpid()}.json.gz")
        ),
    ) as prof:
        for _ in range(drill.steps):
            pipeline = few if drill.hits("few-micro-batches") else many
            inputs = (x,) if rank == 0 else ()
            if has_last:
                pipeline.step(*inputs, target=y, losses=[])
            else:
                pipeline.step(*inputs)
            optimizer.step()
            optimizer.zero_grad()
            drill.tick()
            prof.step()
