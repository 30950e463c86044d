"""`predict`: a job, a cluster, a layout and a stack to a step's time, ledger, memory and power."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from computeflow.catalog import Accelerator
from computeflow.cluster import Cluster
from computeflow.ledger import Entry, Ledger, PeakFlops, Window
from computeflow.prediction.evidence import (
    RunEvidence,
    outlook_of,
    packaged_evidence,
    traits_of,
)
from computeflow.prediction.memory import HEADROOM, stage_memory
from computeflow.prediction.parameters import Parameters, load_parameters
from computeflow.prediction.power import account_watts
from computeflow.prediction.ranges import PredictionSpread, assumptions
from computeflow.prediction.stack import Stack, usual_stack
from computeflow.prediction.step import PredictedSteps, account_step
from computeflow.prediction.step_inputs import StepInputs, of_job, take
from computeflow.workload import Job, Layout, Layouts, check_layout

if TYPE_CHECKING:
    from computeflow.prediction.calibration import Calibration


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes on one device of a pipeline stage, at its fullest moment."""

    bytes: float
    by_owner: dict[str, float]
    host_bytes: float
    """Held for it in the host's memory."""
    disk_bytes: float
    """Held for it on disk."""
    moment: str
    """When in the step it is fullest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    job: Job
    layout: Layout
    stack: Stack
    ledger: Ledger
    """Ledger of one step."""
    step_seconds: float
    step_seconds_range: tuple[float, float]
    """80 % of runs like this one lie between."""
    tokens_per_second_per_gpu: float
    memory_by_stage: tuple[StageMemory, ...]
    memory_limit_bytes: float
    host_limit_bytes: float | None
    """One device's share of the host's memory; None where it is unknown."""
    watts_per_gpu: float | None
    assumed: tuple[str, ...]
    """Defaults taken for what was not given."""
    evidence: RunEvidence
    """Measured runs that stand behind the time and its range."""
    calibrated: tuple[str, ...] = ()
    """Figures that a calibration gave in place of generic ones."""

    @property
    def fullest_stage(self) -> int:
        return max(range(len(self.memory_by_stage)), key=lambda i: self.memory_by_stage[i].bytes)

    @property
    def memory_bytes(self) -> float:
        return self.memory_by_stage[self.fullest_stage].bytes

    @property
    def memory_by_owner(self) -> dict[str, float]:
        return self.memory_by_stage[self.fullest_stage].by_owner

    @property
    def fits(self) -> bool:
        """Whether it fits on the device, and what is offloaded in the host's memory, if known."""
        host = max(stage.host_bytes for stage in self.memory_by_stage)
        return self.memory_bytes <= self.memory_limit_bytes and (
            self.host_limit_bytes is None or host <= self.host_limit_bytes
        )

    @property
    def tight(self) -> bool:
        """Whether it fits, but leaves less than the allocator needs itself."""
        return self.fits and self.memory_bytes > HEADROOM * self.memory_limit_bytes

    @property
    def tokens_per_joule(self) -> float | None:
        joules = self.ledger.joules
        return None if joules is None else self.job.step_tokens / joules


def _account(
    inputs: StepInputs, parameters: Parameters, device: Accelerator, calibration: Calibration | None
) -> PredictedSteps:
    if calibration is None:
        return account_step(inputs, parameters)
    return calibration.account_step(inputs, parameters, device)


def predict(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    stack: Stack | None = None,
    parameters: Parameters | None = None,
    calibration: Calibration | None = None,
) -> Prediction:
    """Predict a layout. An impossible one is refused with the reason; one that does not fit says so."""
    check_layout(job, layout)
    device = cluster.accelerator
    used = stack or usual_stack(device.vendor)
    traits = traits_of(job, device, used)
    evidence = packaged_evidence(traits)
    outlook = outlook_of(job, device, used)
    inputs = of_job(job, cluster, Layouts.of([layout]), used, outlook.rate)
    generic = parameters or load_parameters()
    step = _account(inputs, generic, device, calibration)
    ledger = _ledger(job, layout, inputs, step, generic)
    low, high = PredictionSpread(
        outlook=outlook,
        family=traits.family,
        kind=traits.kind,
        distance=evidence.distance,
        assumed=assumptions(job, cluster, layout, stack_stated=stack is not None),
    ).range
    if calibration is not None and stack is not None:
        low, high = calibration.range_for(stack.name) or (low, high)
    seconds = float(step.seconds[0])
    return Prediction(
        job=job,
        layout=layout,
        stack=used,
        ledger=ledger,
        step_seconds=seconds,
        step_seconds_range=(low * seconds, high * seconds),
        tokens_per_second_per_gpu=job.step_tokens / seconds / layout.gpus,
        memory_by_stage=_stages(inputs, layout.pp),
        memory_limit_bytes=device.reported_bytes or device.hbm_bytes,
        host_limit_bytes=cluster.host_memory_bytes,
        watts_per_gpu=None if ledger.joules is None else ledger.joules / ledger.gpu_seconds,
        assumed=_assumed(job, cluster, used, stated=stack is not None),
        evidence=evidence,
        calibrated=calibration.calibrated(inputs, device) if calibration is not None else (),
    )


def _ledger(
    job: Job, layout: Layout, inputs: StepInputs, step: PredictedSteps, parameters: Parameters
) -> Ledger:
    watts = account_watts(inputs, parameters)
    entries = []
    for name, values in step.accounts.items():
        gpu_seconds = layout.gpus * float(values[0])
        if gpu_seconds > 0:
            joules = gpu_seconds * float(watts[name][0])
            known = None if math.isnan(joules) else joules
            entries.append(Entry(account=name, gpu_seconds=gpu_seconds, joules=known))
    power_known = all(entry.joules is not None for entry in entries)
    return Ledger.closed(
        entries,
        gpus=layout.gpus,
        wall_seconds=float(step.seconds[0]),
        basis="predicted",
        window=Window(label="one step"),
        peak=PeakFlops(
            flops=float(inputs.peak_flops[0]),
            precision=job.precision,
            palm_ratio=float(inputs.palm_flops_per_token[0] / inputs.flops_per_token[0]),
        ),
        unavailable={} if power_known else {"joules": "the device's power limit"},
    )


def _stages(inputs: StepInputs, count: int) -> tuple[StageMemory, ...]:
    """All stages of a single row."""
    held = stage_memory(take(inputs, np.zeros(count, np.int64)), np.arange(count, dtype=np.float64))
    total = held.bytes
    return tuple(
        StageMemory(
            bytes=float(total[stage]),
            by_owner={name: float(values[stage]) for name, values in held.by_owner.items()},
            host_bytes=float(held.host[stage]),
            disk_bytes=float(held.disk[stage]),
            moment=held.moment(stage),
        )
        for stage in range(count)
    )


def _assumed(job: Job, cluster: Cluster, stack: Stack, *, stated: bool) -> tuple[str, ...]:
    """What was not given and what was taken for it."""
    free = []
    if cluster.storage_bytes_per_second(write=False) is None:
        free.append("input")
    if job.checkpoint_steps is None or cluster.storage_bytes_per_second(write=True) is None:
        free.append("checkpoints")
    master = f", {stack.master_bytes:g} bytes of master weights" if stack.master_bytes else ""
    return (
        *cluster.assumed,
        *(() if stated else (f"stack {stack.name} ({stack.year:g})",)),
        f"{job.optimizer} state as {stack.name} keeps it{master}",
        *([f"{' and '.join(free)} cost nothing"] if free else []),
    )
