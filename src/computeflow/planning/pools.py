"""Two pools of unlike devices: each planned alone, and both with data-parallel shares by speed.

Together, every pool runs its own layout on its share of the global batch, and the pools add up their
gradients once a step over the network between them. That sum is counted as not hidden at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from computeflow.catalog.parameters import count_parameters
from computeflow.cluster import Cluster
from computeflow.cluster.collectives import pool_sum_seconds
from computeflow.errors import InputError
from computeflow.planning.plans import TIE, Plan, plan
from computeflow.prediction import Prediction, load_parameters, predict
from computeflow.prediction.stack import Stack, usual_stack
from computeflow.workload import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlan:
    """Both pools on one job."""

    shares: tuple[int, ...]
    """Sequences of the global batch, pool by pool."""
    predictions: tuple[Prediction, ...]
    sum_seconds: float
    """Time to add up gradients between the pools."""

    @property
    def step_seconds(self) -> float:
        return max(prediction.step_seconds for prediction in self.predictions) + self.sum_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    alone: tuple[Plan | None, ...]
    """The best plan of each pool; None where nothing fits."""
    mixed: MixedPlan | None
    """None where the batch cannot be shared, or a pool cannot hold the model."""

    @property
    def mixed_wins(self) -> bool:
        """Whether both pools together are faster, by more than the margin of a tie."""
        times = [p.prediction.step_seconds for p in self.alone if p is not None]
        return (
            self.mixed is not None
            and bool(times)
            and self.mixed.step_seconds < (1 - TIE) * min(times)
        )


def plan_pools(job: Job, clusters: Sequence[Cluster], stack: Stack | None = None) -> Pools:
    by_pool = [plan(job, cluster, stack, top=1).plans for cluster in clusters]
    alone = tuple(plans[0] if plans else None for plans in by_pool)
    if len(clusters) != 2 or alone[0] is None or alone[1] is None:
        return Pools(alone=alone, mixed=None)
    return Pools(alone=alone, mixed=_mixed(job, clusters, (alone[0], alone[1]), stack))


def _mixed(
    job: Job, clusters: Sequence[Cluster], plans: tuple[Plan, Plan], stack: Stack | None
) -> MixedPlan | None:
    """Shares in whole micro-batches of both, as near to equal times as they come."""
    layouts = [p.layout for p in plans]
    units = [x.micro_batch * x.gpus // (x.tp * x.pp * x.cp) for x in layouts]
    rates = [1 / p.prediction.step_seconds for p in plans]
    wanted = job.global_batch * rates[0] / sum(rates)
    whole = range(units[0], job.global_batch, units[0])
    firsts = [first for first in whole if (job.global_batch - first) % units[1] == 0]
    if not firsts:
        return None
    first = min(firsts, key=lambda share: abs(share - wanted))
    shares = (first, job.global_batch - first)
    try:
        predictions = tuple(
            predict(replace(job, global_batch=share), cluster, layout, stack)
            for share, cluster, layout in zip(shares, clusters, layouts, strict=True)
        )
    except ValueError:
        return None
    return MixedPlan(
        shares=shares,
        predictions=predictions,
        sum_seconds=_sum_seconds(job, clusters, stack),
    )


def _sum_seconds(job: Job, clusters: Sequence[Cluster], stack: Stack | None) -> float:
    """Gradients once over and once back, through all NICs of the pool that has fewer bytes/s."""
    stack = stack or usual_stack(clusters[0].accelerator.vendor)
    size = count_parameters(job.model).total * stack.grad_bytes
    ways_out = [cluster.gpus * _nic(cluster) for cluster in clusters]
    return pool_sum_seconds(size, min(ways_out) * load_parameters()["nic_efficiency"])


def _nic(cluster: Cluster) -> float:
    """Bytes/s of one device out of the pool: a pool of one node has NICs that its tiers do not show."""
    if len(cluster.tiers) > 1:
        return cluster.tiers[-1].bytes_per_second
    nic = cluster.accelerator.nic_bytes_per_second
    if nic is None:
        raise InputError(f"the catalog knows no network of {cluster.accelerator.name}")
    return nic
