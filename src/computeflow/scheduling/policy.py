"""`Policy`: everything that is decided beforehand about a run's interruptions."""

from __future__ import annotations

from dataclasses import dataclass, field

from computeflow.scheduling.checkpoints import Checkpoints
from computeflow.scheduling.eviction import Eviction
from computeflow.scheduling.shrinking import Shrinking
from computeflow.scheduling.spares import Spares


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    spares: Spares = field(default_factory=Spares)
    eviction: Eviction = field(default_factory=Eviction)
    shrinking: Shrinking | None = None
    """None: the job keeps its size and waits."""
