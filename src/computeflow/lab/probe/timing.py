"""Timing of one call: warm up, repeat, take the median; on a GPU by its own clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    seconds: float
    """Median of one call."""
    best_seconds: float
    calls: int


def time_calls(
    call: Callable[[], object], device: torch.device, *, least_seconds: float = 0.2, least: int = 5
) -> Timing:
    """Time `call` for at least `least_seconds` and `least` batches, which hide the cost of timing."""
    call()
    once = _batch(call, device, 1)
    size = max(1, min(200, round(0.02 / max(once, 1e-7))))
    times: list[float] = []
    started = time.monotonic()
    while len(times) < least or time.monotonic() - started < least_seconds:
        times.append(_batch(call, device, size) / size)
    return Timing(
        seconds=statistics.median(times), best_seconds=min(times), calls=size * len(times)
    )


def _batch(call: Callable[[], object], device: torch.device, size: int) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(size):
            call()
        return time.perf_counter() - began
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    start.record()
    for _ in range(size):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000
