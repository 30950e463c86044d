"""Summary of a training run, as one value that becomes JSON."""

from __future__ import annotations

import platform
import statistics
from dataclasses import asdict, dataclass
from typing import Any

import torch

from computeflow.lab.sensors import Readings, describe_device
from computeflow.lab.trainer.process_rank import ProcessRank
from computeflow.lab.trainer.timing import StepTiming
from computeflow.lab.trainer.trainer_settings import TrainerSettings

SCHEMA = "computeflow.training/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    schema: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    rank: int
    world: int
    parameters: int
    flops_per_token: float
    """Model FLOPs, forward and backward, causal attention at half."""
    step_seconds: float
    """Median of the measured steps."""
    step_seconds_mean: float
    step_seconds_min: float
    step_seconds_max: float
    tokens_per_second_per_gpu: float
    achieved_flops: float
    """Model FLOPs per second of this rank."""
    phases: dict[str, float]
    """Median seconds of a step by phase."""
    allocated_bytes: int | None
    reserved_bytes: int | None
    readings: dict[str, Any]
    losses: tuple[float, ...]
    steps: tuple[dict[str, Any], ...]

    def to_data(self) -> dict[str, Any]:
        return asdict(self)


def _median_phases(times: list[StepTiming]) -> dict[str, float]:
    names = dict.fromkeys(name for t in times for name in t.phases)
    return {n: statistics.median([t.phases.get(n, 0.0) for t in times]) for n in names}


def summarise(
    settings: TrainerSettings, ranks: ProcessRank, times: list[StepTiming], readings: Readings
) -> Summary:
    measured = times[settings.warmup :]
    seconds = [t.seconds for t in measured]
    tokens = sum(t.tokens for t in measured)
    rate = tokens / sum(seconds)
    on_gpu = ranks.device.type == "cuda"
    return Summary(
        schema=SCHEMA,
        settings=asdict(settings),
        environment=environment(ranks),
        rank=ranks.rank,
        world=ranks.world,
        parameters=settings.parameters,
        flops_per_token=settings.flops_per_token,
        step_seconds=statistics.median(seconds),
        step_seconds_mean=statistics.fmean(seconds),
        step_seconds_min=min(seconds),
        step_seconds_max=max(seconds),
        tokens_per_second_per_gpu=rate,
        achieved_flops=rate * settings.flops_per_token,
        phases=_median_phases(measured),
        allocated_bytes=torch.cuda.max_memory_allocated() if on_gpu else None,
        reserved_bytes=torch.cuda.max_memory_reserved() if on_gpu else None,
        readings=asdict(readings),
        losses=tuple(t.loss for t in times),
        steps=tuple(asdict(t) for t in measured),
    )


def environment(ranks: ProcessRank) -> dict[str, Any]:
    """Provenance of the figures: device, driver, libraries."""
    values: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "device": "cpu",
        "cpu": platform.processor() or platform.machine(),
    }
    if ranks.device.type == "cuda":
        values |= {
            "device": torch.cuda.get_device_name(ranks.device),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            **{f"nvml_{k}": v for k, v in describe_device(ranks.device.index or 0).items()},
        }
    return values
