"""Limits of a plan (`Limits`), and of the search for it."""

from __future__ import annotations

from dataclasses import dataclass

from computeflow.errors import InputError
from computeflow.prediction.memory import HEADROOM

MAX_CUTS = 20_000_000
"""Combinations of sizes in one search: some 20 s of a processor. Ten thousand GPUs have a million; only
numbers with very many divisors have more."""
MAX_LAYOUTS = 200_000_000
"""Layouts in one search: some 60 s of a processor. Ten thousand GPUs have ten million."""
MAX_KEPT = 4096
"""Best layouts that the search keeps; plans are picked among them."""
MAX_TP = 64
"""Tensor-parallel ranks."""
MAX_VP = 16
"""Model chunks on a pipeline stage."""
MAX_MICRO_BATCH = 512
"""Sequences in a micro-batch."""
MIN_CONTEXT_TOKENS = 512
"""Tokens of a sequence that a context-parallel rank must have."""
MAX_BATCHES = 64
"""Global batches in one request; each is a search of its own."""
MAX_PLACEMENT_TABLE = 1 << 25
"""Nodes times kinds of them, whose costs are held: 256 MB a table, of which there are a few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Memory, power and time that a plan must keep."""

    headroom: float = HEADROOM
    watts_per_gpu: float | None = None
    step_seconds: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.headroom <= 1:
            raise InputError(f"headroom {self.headroom}: a share of the memory, up to 1")
