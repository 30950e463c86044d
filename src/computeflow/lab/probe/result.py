"""Results of a probe, on one rank and on all, as values that become JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from computeflow.lab.probe.dataset import DatasetProbe
from computeflow.lab.probe.grading import Outlier, ProbeFigure
from computeflow.lab.probe.host_cpus import ProbedHost
from computeflow.lab.probe.storage import StorageTiming

if TYPE_CHECKING:  # these import torch, which whoever shows a result may not have
    from computeflow.lab.probe.collectives import AlphaBeta, CollectiveTiming
    from computeflow.lab.probe.kernels import AttentionTiming, Gemm
    from computeflow.lab.probe.profiler_cost import ProfilerCost

SCHEMA = "computeflow.probe/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """The raw figures of one pass over one rank."""

    gemms: tuple[Gemm, ...]
    attention: tuple[AttentionTiming, ...]
    memory: dict[str, float]
    """Bytes per second of a copy, an addition, an AdamW step."""
    launch_seconds: float
    copies: dict[str, float]
    storage: StorageTiming | None
    collectives: tuple[CollectiveTiming, ...] = ()
    soak: tuple[tuple[float, float], ...] = ()
    readings: dict[str, Any] = field(default_factory=dict)
    """Power, clocks and temperature during the matmuls and the soak."""
    profiler: ProfilerCost | None = None
    """Cost of torch's profiler; None where torch was built without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    schema: str
    environment: dict[str, Any]
    node: str
    rank: int
    world: int
    repeats: int
    items: tuple[ProbeFigure, ...]
    measurements: tuple[Measurements, ...]
    """Raw figures, one entry for each repeat."""
    host: ProbedHost | None = None
    """The node's host, probed by its first rank."""
    fits: tuple[AlphaBeta, ...] = ()
    dataset: DatasetProbe | None = None
    unavailable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedRanks:
    """All ranks of a probe, on rank 0."""

    probes: tuple[Probe, ...]
    outliers: tuple[Outlier, ...]

    @property
    def bad_nodes(self) -> dict[str, list[str]]:
        """Problems of each bad node: figures worse than expected, and figures unlike the others'."""
        bad: dict[str, list[str]] = {}
        for probe in self.probes:
            for item in probe.items:
                if item.bad:
                    bad.setdefault(probe.node, []).append(f"{item.name} is {item.verdict}")
        for outlier in self.outliers:
            bad.setdefault(outlier.node, []).append(
                f"{outlier.name} is {outlier.deviations:.0f} deviations from the others"
            )
        return {node: list(dict.fromkeys(reasons)) for node, reasons in bad.items()}
