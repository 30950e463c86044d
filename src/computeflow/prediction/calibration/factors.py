"""What a recording shows against the generic figures, kind by kind: `Factors`.

A factor is measured time over predicted time of one kind of work. It goes into the predictor's own
parameters, so that whatever else a term depends on (shapes, clocks, the stack) stays as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from computeflow.errors import InputError
from computeflow.prediction.parameters import Parameters

_SUSTAINED = ("sustained_ampere", "sustained_hopper", "sustained_blackwell", "sustained_trainium",
              "sustained_other")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Measured over predicted time; 1: as predicted, or not seen."""

    matmul: float = 1.0
    attention: float = 1.0
    other: float = 1.0
    """Memory-bound kernels of the layers."""
    loss: float = 1.0
    """Memory-bound kernels of the loss."""
    optimizer: float = 1.0
    recompute: float = 1.0
    """Of what full recomputation repeats."""
    host: float = 1.0
    """The host's time to launch a layer."""
    queued_seconds: float = 0.0
    """Between kernels that are launched in time, of one layer and micro-batch."""
    link: float = 1.0
    """Transfers inside the scale-up domain."""
    network: float = 1.0
    overlap: float | None = None
    """Share of the backward pass that hides gradient traffic."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            low, high = (0.0, 1.0) if field.name in ("queued_seconds", "overlap") else (0.05, 20.0)
            if not (math.isfinite(value) and low <= value <= high):
                raise InputError(
                    f"factors: {field.name} {value:g} is not between {low:g} and {high:g}"
                )

    @property
    def seen(self) -> tuple[str, ...]:
        """Those that differ from the generic figures, for people."""
        return tuple(
            f"{field.name} {getattr(self, field.name):.3g}"
            for field in fields(self)
            if getattr(self, field.name) not in (field.default, None)
        )

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
        changed["link_efficiency"] = p["link_efficiency"] / self.link
        changed["nic_efficiency"] = p["nic_efficiency"] / self.network
        if self.overlap is not None:
            changed["dp_hidden"] = self.overlap
        return p.replaced(changed)
