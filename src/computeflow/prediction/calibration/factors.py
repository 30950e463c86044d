"""Measured over predicted time in a recording, by kind of work: `Factors`.

A factor is measured time over predicted time of one kind of work. It goes into the predictor's own
parameters, so that whatever else a term depends on (shapes, clocks, the stack) stays as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from computeflow.errors import InputError
from computeflow.prediction.parameters import Parameters

_SUSTAINED = (
    "sustained_ampere",
    "sustained_hopper",
    "sustained_blackwell",
    "sustained_trainium",
    "sustained_other",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Measured over predicted time; 1: as predicted, or not seen."""

    precision: str = ""
    """Precision of the recorded products; "": holds for all."""
    kernels: str = ""
    """Kernels of the recorded stack (eager, compiled, ...)."""
    attention_kernel: str = ""

    matmul: float = 1.0
    attention: float = 1.0
    other: float = 1.0
    """Memory-bound kernels of the layers."""
    loss: float = 1.0
    """Memory-bound kernels of the loss."""
    optimizer: float = 1.0
    recompute: float = 1.0
    """Work that full recomputation repeats."""
    host: float = 1.0
    """The host's time to launch a layer."""
    queued_seconds: float = 0.0
    """Time between kernels that are launched in time, for one layer and micro-batch."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or isinstance(value, str):
                continue
            low, high = (0.0, 1.0) if field.name == "queued_seconds" else (0.05, 20.0)
            if not (math.isfinite(value) and low <= value <= high):
                raise InputError(
                    f"factors: {field.name} {value:g} is not between {low:g} and {high:g}"
                )

    @property
    def seen(self) -> tuple[str, ...]:
        """Factors that differ from the generic figures, as text."""
        return tuple(
            f"{field.name} {getattr(self, field.name):.3g}"
            for field in fields(self)
            if isinstance(field.default, float | None)
            and getattr(self, field.name) not in (field.default, None)
        )

    def matching(self, precision: str, kernels: str, attention: str) -> Factors:
        """Factors that hold for such a job: float32 products say nothing of bf16 ones,
        eager kernels nothing of compiled ones.
        """
        factors = self
        if self.precision not in ("", precision):
            factors = replace(
                factors, matmul=1.0, attention=1.0, other=1.0, loss=1.0, optimizer=1.0
            )
        if self.kernels not in ("", kernels):
            factors = replace(
                factors, other=1.0, loss=1.0, host=1.0, queued_seconds=0.0, recompute=1.0
            )
        if self.attention_kernel not in ("", attention):
            factors = replace(factors, attention=1.0)
        return factors

    def applied(self, p: Parameters) -> Parameters:
        changed = {name: p[name] / self.matmul for name in _SUSTAINED}
        for name in ("attention_forward", "attention_backward"):  # follow the clock, too
            changed[name] = p[name] * self.matmul / self.attention
        for name in ("elementwise_bytes", "scan_bytes", "permute_bytes"):
            changed[name] = p[name] * self.other
        changed["logit_bytes"] = p["logit_bytes"] * self.loss
        changed["softmax_bytes"] = p["softmax_bytes"] * self.attention
        changed["optimizer_bytes"] = p["optimizer_bytes"] * self.optimizer
        changed["recomputed"] = p["recomputed"] * self.recompute
        changed["host_forward"] = p["host_forward"] * self.host
        changed["queued"] = max(self.queued_seconds, p["queued"])
        return p.replaced(changed)
