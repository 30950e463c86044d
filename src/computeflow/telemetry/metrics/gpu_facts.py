"""Figures of every GPU and node over the window: `MetricsFacts`, field for field in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

IDLE_SECONDS = 600.0
"""Seconds without activity that no start, checkpoint or evaluation explains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleStretch:
    start: float
    seconds: float
    holder: str
    """The job or pod that a label names; empty where none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Time in which a GPU was held and nothing ran, in stretches of at least `IDLE_SECONDS`."""

    seconds: float
    longest_seconds: float
    stretches: tuple[IdleStretch, ...]
    holders: tuple[str, ...]
    memory_most_bytes: float | None
    power_watts: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Time at work: samples that have a clock, at a utilisation of at least one half."""

    seconds: float
    samples: int
    clock_hertz: float
    power_watts: float | None
    reasons: Mapping[str, float] | None
    """Reasons for a low clock, each with its share of busy time; None without a signal."""
    slowed: tuple[tuple[float, float], ...] = ()
    """Start and end of the times at which a reason that is no setting was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivitySummary:
    """A GPU's activity over time."""

    signal: str
    """The signal that was read: utilisation, else engine or SM activity."""
    span_seconds: float | None
    """Seconds from the first sample to the last; None for samples without times."""
    holder_unknown: bool
    """Whether nothing ran at some time and it is unknown if somebody held the GPU."""
    idle: Idle | None
    busy: Busy | None
    busy_by_holder: Mapping[str, Busy] = field(default_factory=dict)
    """Busy time under each job or pod, where several held the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """Figures of a GPU, None where the exporter has none. Shares are of the observed time."""

    node: str
    gpu: str
    uuid: str = ""
    model: str = ""
    accelerator: str | None = None
    """The catalog's name of the model."""
    workloads: tuple[str, ...] = ()
    """Jobs or pods that held the GPU."""
    samples: int = 0
    observed_seconds: float | None = None
    """Observed time; None for samples without times."""
    utilisation: float | None = None
    """Share of time in which any kernel ran, however small, as nvidia-smi counts it."""
    sm_active: float | None = None
    """The share of cycles and SMs with at least one warp."""
    tensor_active: float | None = None
    """The share of cycles in which the tensor pipe worked."""
    dram_active: float | None = None
    mfu_upper: float | None = None
    """Tensor activity, times the clock over the clock of the peak where both are known. The MFU is
    lower: this includes recomputation and every product that is not the model's."""
    idle_share: float | None = None
    """Share of time in which the GPU was held and nothing ran."""
    held_share: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    joules: float | None = None
    joules_from: str = ""
    clock_hertz: float | None = None
    """Mean clock while busy; over all samples where no activity was sampled."""
    clock_max_hertz: float | None = None
    clock_sampled: bool = False
    reasons: Mapping[str, float] = field(default_factory=dict)
    """Reasons for a low clock, each with its share of time."""
    temperature_most: float | None = None
    memory_temperature_most: float | None = None
    memory_used_most_bytes: float | None = None
    memory_bytes: float | None = None
    ecc_corrected: float | None = None
    """Errors within the window; the counter itself for samples without times."""
    ecc_uncorrected: float | None = None
    rows_remapped: float | None = None
    """Rows remapped since the device was made."""
    remap_failed: bool | None = None
    link_bytes_per_second: float | None = None
    """NVLink traffic in both directions."""
    link_errors: float | None = None
    pcie_bytes_per_second: float | None = None
    pcie_replays: float | None = None
    xids: tuple[int, ...] = ()
    activity: ActivitySummary | None = None
    """Activity over time; None where it was not sampled."""

    @property
    def label(self) -> str:
        where = f"GPU {self.gpu or self.uuid}"
        return f"{self.node} {where}" if self.node else where


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    node: str
    cpus_busy: float | None = None
    memory_used_share: float | None = None
    network_received_bytes_per_second: float | None = None
    network_sent_bytes_per_second: float | None = None
    infiniband_received_bytes_per_second: float | None = None
    infiniband_sent_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsFacts:
    start: float | None
    """Unix time of the first sample and the last; None where samples have no times."""
    end: float | None
    step_seconds: float | None
    """The median time between samples of a GPU."""
    samples: int
    gpus: tuple[GpuFigures, ...]
    nodes: tuple[NodeFigures, ...] = ()
