"""Operators' speed against the roofline: what the device could do with their shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from computeflow.catalog.rows import Accelerator
from computeflow.telemetry.traces.job_ledgers import TYPES
from computeflow.telemetry.traces.rank_measurements import OperatorRow

_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    name: str
    count: int
    seconds: float
    flops_per_second: float
    intensity: float | None
    """FLOPs for each byte of operands and result, every byte moved once."""
    bound: str
    """`compute` or `memory`: what limits these shapes on this device."""
    of_bound: float | None
    """Fraction of that limit that is reached."""


def rooflines(
    operators: Sequence[OperatorRow], accelerator: Accelerator | None, *, tf32: bool = False
) -> list[Roofline]:
    rows = []
    for row in operators:
        if row.seconds <= 0:
            continue
        rate = row.flops / row.seconds
        precision = TYPES.get(row.type, "")
        if precision == "fp32" and tf32:
            precision = "tf32"
        peak = accelerator.dense_flops.get(precision) if accelerator else None
        size = _BYTES.get(precision)
        intensity = row.flops / (row.elements * size) if size and row.elements else None
        bound, share = "", None
        if peak is not None and accelerator is not None and intensity is not None:
            memory = intensity * accelerator.hbm_bytes_per_second
            bound = "compute" if peak <= memory else "memory"
            share = rate / min(peak, memory)
        rows.append(
            Roofline(
                name=row.name,
                count=row.count,
                seconds=row.seconds,
                flops_per_second=rate,
                intensity=intensity,
                bound=bound,
                of_bound=share,
            )
        )
    return rows
