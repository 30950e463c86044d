"""How far a run may lie from its prediction: an 80 % range that grows with the distance to evidence.

Three things spread runs around a prediction, in ln: what measured runs leave open of the stack's
maturity on the device (`evidence.maturity`), what sites and teams differ by, and what single runs
differ by; and a fourth where the prediction had to assume something.
How many of these deviations hold 80 % of the runs, up and down, is measured for each distance by
leaving out sources, devices, stacks and pairs in turn (`python -m benchmarks.prove_unseen`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from computeflow.cluster import Cluster
from computeflow.prediction.evidence.maturity import Outlook
from computeflow.workload import Job, Layout

RUN = {
    "dense": 0.08,
    "long context": 0.08,
    "low precision": 0.08,
    "experts": 0.20,
    "low-rank": 0.12,
}
"""Deviation of single runs of one source, by kind. Set by hand near what the sources show
(benchmarks/reports/unseen.md, "Spread")."""
SOURCE = {
    "megatron": 0.12,
    "neuron": 0.12,
    "lab": 0.12,
    "torch": 0.15,
    "native": 0.15,
    "xla": 0.25,
    "gaudi": 0.25,
    "huggingface": 0.25,
    "deepspeed": 0.30,
}
"""Deviation of the sources' medians around the prediction without them, by family of stacks: the less
a stack settles by itself, the more teams differ. Set by hand near what the sources show (likewise);
a part of what they show is bias, which the asymmetric ends take."""
ASSUMED = {
    "stack": 0.15,
    "network": 0.07,
    "recompute": 0.05,
    "micro_batch": 0.10,
    "layout": 0.10,
    "precision": 0.30,
    "width": 0.05,
    "schedule": 0.10,
    "experts": 0.15,
    "untested": 0.20,
}
"""Deviation that each assumption adds: judgements."""
QUANTILES = {
    "together": (0.45, 1.9),
    "apart": (0.5, 2.1),
    "one seen": (0.85, 1.9),
    "none seen": (0.9, 2.0),
}
"""Deviations below and above that hold 80 % of the runs, by distance to evidence: between what the two
public tables need and what the runs found since do (benchmarks/reports/unseen.md, found_runs.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionSpread:
    """What is open about a prediction."""

    outlook: Outlook
    family: str
    kind: str
    distance: str
    assumed: Sequence[str] = ()

    @property
    def deviation(self) -> float:
        """Standard deviation of ln(measured / predicted)."""
        parts = [
            self.outlook.deviation,
            SOURCE[self.family],
            RUN[self.kind],
            *(ASSUMED[name] for name in self.assumed),
        ]
        return math.hypot(*parts)

    @property
    def range(self) -> tuple[float, float]:
        """Low and high end, as shares of the predicted time."""
        below, above = QUANTILES[self.distance]
        return math.exp(-below * self.deviation), math.exp(above * self.deviation)


def assumptions(
    job: Job, cluster: Cluster, layout: Layout, *, stack_stated: bool
) -> tuple[str, ...]:
    """Names in `ASSUMED` of what the prediction had to assume."""
    usual = layout.schedule == "1f1b" and layout.offload == "none" and layout.context == "ring"
    assumed = {
        "stack": not stack_stated,
        "network": bool(cluster.assumed) and layout.gpus > cluster.domain,
        "untested": not usual,
    }
    return tuple(name for name, hidden in assumed.items() if hidden)
