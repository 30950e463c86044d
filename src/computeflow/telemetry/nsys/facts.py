"""What an export says of each GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from computeflow.telemetry.traces.measured import GapRow, KernelRow


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRow:
    what: str
    """From where to where."""
    count: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NsightGpu:
    """One GPU: the accounts sum to the seconds of its window."""

    rank: int
    rank_from: str
    """How the rank is known: file name, or the order of GPUs in the files."""
    source: str
    process: int | None
    device: int
    """The number that the process calls it by."""
    name: str
    """Of the GPU; "" where the export does not say."""
    seconds: float
    accounts: Mapping[str, float]
    host: Mapping[str, float]
    """Of the account `host`, by cause."""
    steps: tuple[int, ...]
    steps_from: str
    step_seconds: tuple[float, ...]
    busy_seconds: float
    """In which anything ran."""
    comm_seconds: float
    comm_hidden_seconds: float
    """Of these, under computation."""
    copy_seconds: float
    copy_hidden_seconds: float
    kernels: tuple[KernelRow, ...]
    gaps: tuple[GapRow, ...]
    copies: tuple[CopyRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """A counter that was sampled over the whole recording."""

    source: str
    gpu: int
    metric: str
    mean: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Nsight:
    """One job: a file, or files that were recorded at the same time."""

    versions: tuple[str, ...]
    """Of Nsight Systems and of the schema."""
    gpus: tuple[NsightGpu, ...]
    metrics: tuple[MetricRow, ...]
    shared_collectives: int
    """Found on several GPUs, by the names and the order of their kernels."""
