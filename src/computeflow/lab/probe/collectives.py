"""Timings of collectives over the present ranks: a sweep of sizes, and latency and bandwidth fitted
to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from computeflow.cluster.collectives import bus_factor

OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTiming:
    operation: str
    ranks: int
    payload_bytes: int
    """The whole buffer of the operation (nccl-tests convention)."""
    seconds: float
    bus_bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AlphaBeta:
    """The fit `seconds = alpha + payload / rate`, by relative errors."""

    operation: str
    ranks: int
    alpha_seconds: float
    bytes_per_second: float


def sweep(device: torch.device, sizes: list[int], repeats: int = 5) -> Iterator[CollectiveTiming]:
    """Time every operation at every size; the slowest rank's time counts."""
    world = dist.get_world_size()
    for operation in OPERATIONS:
        for size in sizes:
            count = max(size // 4 // world, 1) * world
            call = _call(operation, device, count, world)
            if call is None:
                break
            seconds = min(_slowest(call, device) for _ in range(repeats))
            yield CollectiveTiming(
                operation=operation,
                ranks=world,
                payload_bytes=4 * count,
                seconds=seconds,
                bus_bytes_per_second=bus_factor(operation, world) * 4 * count / seconds,
            )


def _call(
    operation: str, device: torch.device, count: int, world: int
) -> Callable[[], object] | None:
    whole = torch.ones(count, device=device)
    part = torch.ones(count // world, device=device)
    if operation == "all-reduce":
        return lambda: dist.all_reduce(whole)
    if operation == "all-gather":
        return lambda: dist.all_gather_into_tensor(whole, part)
    if operation == "reduce-scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole)
    other = torch.empty_like(whole)
    return lambda: dist.all_to_all_single(other, whole)


def _slowest(call: Callable[[], object], device: torch.device) -> float:
    dist.barrier()
    _wait(device)
    began = time.perf_counter()
    call()
    _wait(device)
    took: Tensor = torch.tensor(time.perf_counter() - began, device=device)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return float(took)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fit(timings: list[CollectiveTiming]) -> list[AlphaBeta]:
    """Fit each operation by least squares on relative errors, so that small messages weigh as much
    as large ones.
    """
    fits = []
    for operation in dict.fromkeys(t.operation for t in timings):
        points = [(t.payload_bytes, t.seconds) for t in timings if t.operation == operation]
        if len(points) < 2:
            continue
        alpha, slope = _weighted_line(points)
        if slope <= 0:  # larger messages took no longer: noise, not a bandwidth
            continue
        fits.append(
            AlphaBeta(
                operation=operation,
                ranks=timings[0].ranks,
                alpha_seconds=max(alpha, 0.0),
                bytes_per_second=1 / slope,
            )
        )
    return fits


def _weighted_line(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Intercept and slope of y over x with weights 1/y^2."""
    weights = [1 / y**2 for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    over = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True))
    under = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = over / under if under else 0.0
    return mean_y - slope * mean_x, slope
