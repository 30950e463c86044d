"""Pipelines: schedules of torch.distributed.pipelining, and two written by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from benchmarks.ranks.cases import Case
from benchmarks.ranks.faults import UNEVEN, Fault
from benchmarks.ranks.layers import Layer
from benchmarks.ranks.meter import Meter

WIDTH, BATCH = 64, 240
"""Divided by every number of micro-batches: 2, 3, 4, 5, 8, 10, 12, 15 and 16."""
DEVICE = torch.device("cpu")


class Stage(nn.Module):
    """Layers of one stage; the fault moves some of them to other stages."""

    def __init__(self, case: Case, fault: Fault) -> None:
        super().__init__()
        most = max(UNEVEN.get(case.ranks, (0,))) if case.fault == "uneven-stages" else 0
        seconds = case.layer_seconds / case.stages_per_rank
        self.layers = nn.ModuleList(
            Layer(WIDTH, seconds, fault.factor, BATCH) for _ in range(max(case.layers, most))
        )
        self.fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in list(self.layers)[: self.fault.stage_layers()]:
            x = layer(x)
        return x


def _loss(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(y, target)


def _train(
    case: Case,
    fault: Fault,
    meter: Meter,
    modules: nn.Module,
    make: Callable[[int], Any],
) -> None:
    """Steps of a schedule; another one, with more micro-batches, where the fault is off."""
    schedules = {True: make(case.micro_batches)}
    schedules[False] = (
        make(case.fixed_micro_batches) if case.fixed_micro_batches else schedules[True]
    )
    optimizer = torch.optim.SGD(modules.parameters(), lr=1e-3)
    first, last = fault.rank == 0, fault.rank == case.ranks - 1
    while not meter.done:
        optimizer.zero_grad()
        inputs = (torch.randn(BATCH, WIDTH),) if first else ()
        losses: list[torch.Tensor] = []
        more = {"target": torch.randn(BATCH, WIDTH), "losses": losses} if last else {}
        schedules[fault.on].step(*inputs, **more)
        optimizer.step()
        fault.after_step(modules)
        meter.end_step()


def _single(case: Case, fault: Fault, meter: Meter, kind: Any) -> None:
    dist.init_process_group("gloo")
    module = Stage(case, fault)

    def make(micro_batches: int) -> Any:
        stage = PipelineStage(module, fault.rank, case.ranks, DEVICE)
        return kind(stage, micro_batches, loss_fn=_loss)

    _train(case, fault, meter, module, make)
    dist.destroy_process_group()


def pipeline_1f1b(case: Case, fault: Fault, meter: Meter) -> None:
    _single(case, fault, meter, Schedule1F1B)


def pipeline_gpipe(case: Case, fault: Fault, meter: Meter) -> None:
    _single(case, fault, meter, ScheduleGPipe)


def pipeline_1f1b_deep(case: Case, fault: Fault, meter: Meter) -> None:
    """Stages in a group of their own, as a job with several dimensions has them."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (1, case.ranks), mesh_dim_names=("dp", "pp"))
    module = Stage(case, fault)

    def make(micro_batches: int) -> Any:
        stage = PipelineStage(module, fault.rank, case.ranks, DEVICE, group=mesh.get_group("pp"))
        return Schedule1F1B(stage, micro_batches, loss_fn=_loss)

    _train(case, fault, meter, module, make)
    dist.destroy_process_group()


def pipeline_interleaved(case: Case, fault: Fault, meter: Meter) -> None:
    """Two stages on each rank, one of each half of the model."""
    dist.init_process_group("gloo")
    modules = nn.ModuleList(Stage(case, fault) for _ in range(case.stages_per_rank))
    count = case.ranks * case.stages_per_rank

    def make(micro_batches: int) -> Any:
        stages: list[Any] = [
            PipelineStage(module, fault.rank + place * case.ranks, count, DEVICE)
            for place, module in enumerate(modules)
        ]
        return ScheduleInterleaved1F1B(stages, micro_batches, loss_fn=_loss)

    _train(case, fault, meter, modules, make)
    dist.destroy_process_group()


class Neighbours:
    """Activations from the stage before, gradients from the one behind."""

    def __init__(self, case: Case, fault: Fault) -> None:
        self.before = fault.rank - 1 if fault.rank else None
        self.behind = fault.rank + 1 if fault.rank + 1 < case.ranks else None
        self.sent: list[Any] = []

    def read(self, rank: int | None, rows: int) -> torch.Tensor:
        buffer = torch.empty(rows, WIDTH)
        dist.recv(buffer, rank)
        return buffer

    def read_async(self, rank: int | None, rows: int) -> torch.Tensor:
        buffer = torch.empty(rows, WIDTH)
        work = dist.irecv(buffer, rank)
        assert work is not None
        work.wait()
        return buffer

    def send_later(self, tensor: torch.Tensor, rank: int) -> None:
        self.sent.append((dist.isend(tensor, rank), tensor))

    def finish(self) -> None:
        for work, _ in self.sent:
            work.wait()
        self.sent.clear()


def _inputs(micro_batches: int) -> list[torch.Tensor]:
    return list(torch.randn(BATCH, WIDTH).chunk(micro_batches))


def pipeline_blocking(case: Case, fault: Fault, meter: Meter) -> None:
    """All forward passes, then all backward passes, with `send` and `recv`."""
    dist.init_process_group("gloo")
    module, links = Stage(case, fault), Neighbours(case, fault)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    while not meter.done:
        few = fault.on or not case.fixed_micro_batches
        count = case.micro_batches if few else case.fixed_micro_batches
        rows, batch = BATCH // count, _inputs(count)
        kept = deque[tuple[torch.Tensor, torch.Tensor]]()
        for number in range(count):
            x = batch[number]
            if links.before is not None:
                x = links.read(links.before, rows).requires_grad_()
            y = module(x)
            if links.behind is not None:
                dist.send(y.detach(), links.behind)
            kept.append((x, y))
        for x, y in kept:
            if links.behind is None:
                (y.square().mean() / count).backward()
            else:
                y.backward(links.read(links.behind, rows))
            if links.before is not None:
                assert x.grad is not None
                dist.send(x.grad, links.before)
        optimizer.step()
        optimizer.zero_grad()
        fault.after_step(module)
        meter.end_step()
    dist.destroy_process_group()


def pipeline_async(case: Case, fault: Fault, meter: Meter) -> None:
    """One forward, one backward, with `isend` that is waited for at the end of the step."""
    dist.init_process_group("gloo")
    module, links = Stage(case, fault), Neighbours(case, fault)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    while not meter.done:
        few = fault.on or not case.fixed_micro_batches
        count = case.micro_batches if few else case.fixed_micro_batches
        rows, batch = BATCH // count, _inputs(count)
        kept = deque[tuple[torch.Tensor, torch.Tensor]]()

        def forward(
            x: torch.Tensor, rows: int = rows, kept: deque[tuple[torch.Tensor, torch.Tensor]] = kept
        ) -> None:
            if links.before is not None:
                x = links.read_async(links.before, rows).requires_grad_()
            y = module(x)
            if links.behind is not None:
                links.send_later(y.detach(), links.behind)
            kept.append((x, y))

        def backward(
            rows: int = rows,
            count: int = count,
            kept: deque[tuple[torch.Tensor, torch.Tensor]] = kept,
        ) -> None:
            x, y = kept.popleft()
            if links.behind is None:
                (y.square().mean() / count).backward()
            else:
                y.backward(links.read_async(links.behind, rows))
            if links.before is not None:
                assert x.grad is not None
                links.send_later(x.grad, links.before)

        ahead = min(case.ranks - fault.rank - 1, count)
        for number in range(ahead):
            forward(batch[number])
        for number in range(ahead, count):
            forward(batch[number])
            backward()
        for _ in range(ahead):
            backward()
        links.finish()
        optimizer.step()
        optimizer.zero_grad()
        fault.after_step(module)
        meter.end_step()
    dist.destroy_process_group()
