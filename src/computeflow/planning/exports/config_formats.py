"""The parts of an export, and the result of reading one back.

A format turns a `Setup` into files (`write`) and such a file into a `ConfigReading` (`read`). Fields of
a reading are named like those of `Job` and `Layout`, so that the two meet without a table between them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from computeflow.cluster import Cluster
from computeflow.prediction.stack import Stack
from computeflow.workload import Job, Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One plan, with all that a launch needs to know."""

    job: Job
    cluster: Cluster
    layout: Layout
    stack: Stack
    tokens: float | None = None
    """Tokens to train on, where known."""

    @property
    def dp(self) -> int:
        layout = self.layout
        return layout.gpus // (layout.tp * layout.pp * layout.cp)

    @property
    def accumulation(self) -> int:
        """Micro-batches of a data-parallel rank in a step."""
        return self.job.global_batch // (self.dp * self.layout.micro_batch)

    @property
    def node_devices(self) -> int:
        node = self.cluster.node_devices or min(self.cluster.domain, 8)
        return min(node, self.layout.gpus)

    @property
    def nodes(self) -> int:
        return -(-self.layout.gpus // self.node_devices)

    @property
    def steps(self) -> int | None:
        return None if self.tokens is None else max(round(self.tokens / self.job.step_tokens), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenConfig:
    files: dict[str, str]
    """Name to text."""
    left_out: tuple[str, ...] = ()
    """Parts of the plan that the format cannot express; also in a comment of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReading:
    format: str
    job: dict[str, Any] = field(default_factory=dict)
    """Fields of `Job` that the file states; the model as a name, a path or a shape."""
    layout: dict[str, Any] = field(default_factory=dict)
    """Fields of `Layout`; gpus only where the file states it."""
    accumulation: int | None = None
    """Micro-batches of a data-parallel rank in a step, where the global batch follows from the GPUs."""
    stack: str | None = None
    capabilities: dict[str, Any] = field(default_factory=dict)
    """Fields of `Stack` that the file states: whether kernels are compiled, what overlaps."""
    timeouts: dict[str, float] = field(default_factory=dict)
    """Seconds, by the names of `planning.timeouts.NAMES`."""
    unknown: tuple[str, ...] = ()
    """Keys that were not understood: kept here, not lost."""
    notes: tuple[str, ...] = ()
    """Defaults taken for what the file leaves open."""


class ConfigFormat(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """Version of the project that the keys were checked against."""
        ...

    def write(self, setup: Setup) -> WrittenConfig: ...

    def recognises(self, text: str, file_name: str) -> bool:
        """Whether the text is of this format: by content first, by name where that leaves it open."""
        ...

    def read(self, text: str, where: str) -> ConfigReading: ...
