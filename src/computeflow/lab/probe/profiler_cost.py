"""Cost of torch's profiler on this host: the same small training step without it and with it.

The step is a transformer's, of tensors so small that the host's work is all there is. On a GPU the
clock stops when the host has launched the step, and the device is waited for outside of it.
Neglected: what the profiler does at its start and end, and its options that record more (shapes,
stacks, memory).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, supported_activities

Step = Callable[[], None]

_BLOCKS, _WIDTH, _HEADS, _BATCH, _TOKENS = 2, 32, 2, 2, 8
_WARM_UP_STEPS = 5
_REPEATS = 5
_STEPS = 30
"""Steps of a repeat: with 10, a busy host gave ratios below 1 (docs/log.md)."""
_REPEAT_SECONDS = 0.5
"""A repeat ends after this on a slow host; here it takes 0.1 s."""
_LAUNCH_STEPS = 3
"""Steps whose launch calls are read: reading an event takes longer than recording it."""
_SILENT = "99"
"""Kineto's log level that omits its own two lines per profile on stderr (torch 2.13)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStepTiming:
    """Host time of a step. Other work on the host only adds to it, so the best step counts."""

    seconds: float
    """Best step of all repeats."""
    high_seconds: float
    """Best step of the slowest repeat: far above the other, the host was busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerCost:
    plain: HostStepTiming
    profiled: HostStepTiming
    operators: int
    """Operators that the profiler records in one step, those inside others included."""
    launches: int
    """Launch calls that it records in one step."""
    launch_call_seconds: float | None
    """Median of a launch call while profiled; None where no launch is recorded."""

    @property
    def ratio(self) -> float:
        return self.profiled.seconds / self.plain.seconds

    @property
    def added_operator_seconds(self) -> float:
        return (self.profiled.seconds - self.plain.seconds) / self.operators


def profiler_costs(device: torch.device, passes: int) -> tuple[ProfilerCost, ...]:
    """The cost as each pass measures it; empty where torch was built without its profiler.

    All steps without the profiler come first, and the caller measures nothing on the device after:
    CUPTI stays loaded when a profile ends and slows launches (pytorch issue 144455).
    """
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    if ProfilerActivity.CPU not in supported_activities():
        return ()
    os.environ.setdefault("KINETO_LOG_LEVEL", _SILENT)
    with _one_thread():
        step = _training_step(device)
        plain = [_time_steps(step, device) for _ in range(passes)]
        return tuple(_cost(step, device, timing, activities) for timing in plain)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Operators on one thread: on a busy host the waits for the others take most of a step."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        split = self.qkv(self.attention_norm(x)).view(_BATCH, _TOKENS, 3, _HEADS, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        hidden: Tensor = x + self.down(F.gelu(self.up(self.mlp_norm(x))))
        return hidden


def _training_step(device: torch.device) -> Step:
    """Forward, backward and optimizer, warmed up."""
    model = nn.Sequential(*(_Block() for _ in range(_BLOCKS))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = torch.randn(_BATCH, _TOKENS, _WIDTH, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    for _ in range(_WARM_UP_STEPS):
        step()
    return step


def _time_steps(step: Step, device: torch.device) -> HostStepTiming:
    repeats = [min(_host_seconds(step, device)) for _ in range(_REPEATS)]
    return HostStepTiming(seconds=min(repeats), high_seconds=max(repeats))


def _host_seconds(step: Step, device: torch.device) -> Iterator[float]:
    started = time.monotonic()
    for _ in range(_STEPS):
        _wait(device)
        began = time.perf_counter()
        step()
        yield time.perf_counter() - began
        if time.monotonic() - started > _REPEAT_SECONDS:
            return


def _cost(
    step: Step, device: torch.device, plain: HostStepTiming, activities: list[ProfilerActivity]
) -> ProfilerCost:
    with profile(activities=activities):
        step()
        profiled = _time_steps(step, device)
        _wait(device)
    launches: list[float] = []
    if ProfilerActivity.CUDA in activities:
        launches = launch_call_seconds(_recorded(step, device, activities, _LAUNCH_STEPS))
    return ProfilerCost(
        plain=plain,
        profiled=profiled,
        operators=len(_recorded(step, device, [ProfilerActivity.CPU], 1)),
        launches=round(len(launches) / _LAUNCH_STEPS),
        launch_call_seconds=statistics.median(launches) if launches else None,
    )


def launch_call_seconds(events: Iterable[Any]) -> list[float]:
    """Durations of cudaLaunchKernel and its kind: the runtime's, the driver's, ROCm's."""
    return [1e-6 * e.time_range.elapsed_us() for e in events if "LaunchKernel" in e.name]


def _recorded(
    step: Step, device: torch.device, activities: list[ProfilerActivity], steps: int
) -> list[Any]:
    """Events of a profile over a few steps."""
    with profile(activities=activities) as recording:
        for _ in range(steps):
            step()
        _wait(device)
    return list(recording.events() or ())


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
