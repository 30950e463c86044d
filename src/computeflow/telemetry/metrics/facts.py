"""What metrics say of every GPU and node over the window: `MetricsFacts`, field for field in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

IDLE_SECONDS = 600.0
"""On end without activity: long enough that no start, checkpoint or evaluation explains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Held by somebody while nothing ran, in stretches of `IDLE_SECONDS` and more."""

    seconds: float
    longest_seconds: float
    holders: tuple[str, ...]
    memory_most_bytes: float | None
    power_watts: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """At work: samples with a clock, at a utilisation of half and more."""

    seconds: float
    samples: int
    clock_hertz: float
    power_watts: float | None
    reasons: Mapping[str, float] | None
    """Why the clock was held down, with the share of busy time; None where no signal tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What the samples of a GPU's activity say in time."""

    signal: str
    """The activity that was read: utilisation, else the engine's or the SMs'."""
    span_seconds: float | None
    """From the first sample to the last; None: samples without times."""
    holder_unknown: bool
    """Nothing ran at some time, and nothing tells whether somebody held it."""
    idle: Idle | None
    busy: Busy | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """None: the exporter did not say. Shares are of the time that was observed."""

    node: str
    gpu: str
    uuid: str = ""
    model: str = ""
    accelerator: str | None = None
    """The catalog's name of the model."""
    workloads: tuple[str, ...] = ()
    """Jobs or pods that held it."""
    samples: int = 0
    observed_seconds: float | None = None
    """None: samples without times."""
    utilisation: float | None = None
    """nvidia-smi's: the share of time in which any kernel ran, however small."""
    sm_active: float | None = None
    """The share of cycles and SMs with at least one warp."""
    tensor_active: float | None = None
    """The share of cycles in which the tensor pipe worked."""
    dram_active: float | None = None
    mfu_upper: float | None = None
    """Tensor activity, times the clock over the clock of the peak where both are known. The MFU is
    lower: recomputation is in it, and so is every product that is not the model's."""
    idle_share: float | None = None
    """Held by somebody while nothing ran."""
    held_share: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    joules: float | None = None
    joules_from: str = ""
    clock_hertz: float | None = None
    """The mean while busy; of all samples where no activity was sampled."""
    clock_max_hertz: float | None = None
    clock_sampled: bool = False
    reasons: Mapping[str, float] = field(default_factory=dict)
    """Why the clock was held down, with the share of time."""
    temperature_most: float | None = None
    memory_temperature_most: float | None = None
    memory_used_most_bytes: float | None = None
    memory_bytes: float | None = None
    ecc_corrected: float | None = None
    """Errors within the window; of samples without times, the counter itself."""
    ecc_uncorrected: float | None = None
    rows_remapped: float | None = None
    """All that are remapped, since the device was made."""
    remap_failed: bool | None = None
    link_bytes_per_second: float | None = None
    """NVLink, both ways."""
    link_errors: float | None = None
    pcie_bytes_per_second: float | None = None
    pcie_replays: float | None = None
    xids: tuple[int, ...] = ()
    activity: Activity | None = None
    """None: no activity was sampled."""

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
