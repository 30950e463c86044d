"""Why the best plan is the best, and what would make it better.

`account_losses` books what a runner-up loses, account by account; `sensitivities` predicts the best
plan again with one thing of the cluster or the job changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from computeflow.cluster import Cluster
from computeflow.errors import ComputeFlowError
from computeflow.planning.limits import Limits
from computeflow.planning.plans import Plan, plan
from computeflow.prediction import Prediction, predict
from computeflow.prediction.stack import Stack
from computeflow.prediction.step_inputs import power_limit_known
from computeflow.workload import Job, Layout

T = TypeVar("T", Layout, Stack)
LOWER_POWER, MORE_MEMORY = 0.8, 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLoss:
    """Seconds of a step that a plan takes longer than the best, in one account."""

    account: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeEffect:
    change: str
    step_seconds: float | None
    """Step time after the change; None where it cannot be predicted, and `note` says why."""
    gain: float | None
    """Share of the step that it saves; negative where it costs."""
    note: str = ""


def changed_fields(before: T, after: T) -> dict[str, tuple[Any, Any]]:
    """Fields that differ, each with what it was and what it is."""
    old, new = asdict(before), asdict(after)
    return {name: (old[name], new[name]) for name in old if old[name] != new[name]}


def account_losses(best: Prediction, other: Prediction) -> list[AccountLoss]:
    """Extra seconds of `other` over `best`, by account, the largest first."""
    names = dict.fromkeys([*best.ledger.accounts, *other.ledger.accounts])
    mine, theirs = (
        {name: p.ledger.accounts.get(name, 0.0) / p.layout.gpus for name in names}
        for p in (best, other)
    )
    lost = [AccountLoss(account=name, seconds=theirs[name] - mine[name]) for name in names]
    return sorted(lost, key=lambda item: -abs(item.seconds))


def sensitivities(
    job: Job,
    cluster: Cluster,
    best: Plan,
    stack: Stack,
    *,
    fixed: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
) -> list[ChangeEffect]:
    """The best plan with one thing changed at a time; only more memory lets the layout change."""
    layout, before = best.layout, best.prediction.step_seconds
    tried = {
        "twice the network": (job, _faster_network(cluster)),
        "fp8 matmuls": (replace(job, precision="fp8"), cluster),
        "20 % lower power limit": (job, _capped(cluster)),
    }
    changes = []
    for change, (new_job, new_cluster) in tried.items():
        if new_cluster is None or (new_job == job and new_cluster == cluster):
            continue
        try:
            after = predict(new_job, new_cluster, layout, stack).step_seconds
        except ComputeFlowError as error:
            changes.append(
                ChangeEffect(change=change, step_seconds=None, gain=None, note=str(error))
            )
            continue
        changes.append(ChangeEffect(change=change, step_seconds=after, gain=1 - after / before))
    device = cluster.accelerator
    size = MORE_MEMORY * (device.reported_bytes or device.hbm_bytes)
    roomier = replace(device, hbm_bytes=size, reported_bytes=None)
    again = plan(
        job, replace(cluster, accelerator=roomier), stack, fixed=fixed, limits=limits, top=1
    )
    if again.plans:
        after = again.plans[0].prediction.step_seconds
        note = "" if again.plans[0].layout == layout else "with another layout"
        changes.append(
            ChangeEffect(
                change="20 % more memory", step_seconds=after, gain=1 - after / before, note=note
            )
        )
    return changes


def _faster_network(cluster: Cluster) -> Cluster | None:
    if len(cluster.tiers) < 2:
        return None
    first, *outer = cluster.tiers
    faster = [replace(tier, bytes_per_second=2 * tier.bytes_per_second) for tier in outer]
    return replace(cluster, tiers=(first, *faster))


def _capped(cluster: Cluster) -> Cluster | None:
    watts = cluster.accelerator.tdp_watts
    if watts is None or not power_limit_known(cluster.accelerator):
        return None
    return replace(cluster, accelerator=replace(cluster.accelerator, tdp_watts=LOWER_POWER * watts))
