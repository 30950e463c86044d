"""`plan`: the best layouts of a job on a cluster, few and unlike, each with its prediction.

Start with `plan`. Plans are ordered by the pessimistic figure of `search`. Layouts within `TIE` of each
other cannot be distinguished, so the one whose features were measured, then the simpler one,
goes first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from computeflow.cluster import MAX_GPUS, Cluster
from computeflow.planning.limits import Limits
from computeflow.planning.search import Objective, Progress, SearchResult, search
from computeflow.planning.space import LayoutCounts, Space
from computeflow.prediction import Parameters, Prediction, predict
from computeflow.prediction.stack import Stack, usual_stack
from computeflow.units import format_si
from computeflow.workload import Job, Layout

TIE = 0.03
"""Differences of predicted time that mean nothing: the spread of runs of one and the same layout."""
_UNMEASURED = {
    "schedule": ("zero-bubble", "zbv", "dualpipe"),
    "offload": ("optimizer", "parameters", "activations", "nvme"),
    "context": ("all-to-all",),
    "sharding": ("zero2", "hsdp"),
}
"""Choices that no packaged run has."""
MEASURED_TP, MEASURED_CP = 8, 8
"""The most tensor and context parallelism of the packaged runs (docs/accuracy.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    prediction: Prediction
    pessimistic_seconds: float
    """Time of a step, with everything the plan relies on one deviation worse."""
    complexity: int
    """Mechanisms that the layout uses."""
    unmeasured: tuple[str, ...]
    """Features among them that no published run here tests."""
    warnings: tuple[str, ...] = ()

    @property
    def layout(self) -> Layout:
        return self.prediction.layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """The answer of a search."""

    plans: tuple[Plan, ...]
    """Best first; none where nothing fits."""
    count: LayoutCounts
    complete: bool
    smallest_bytes: float
    """Least device memory that any possible layout needs."""
    fastest_seconds: float
    """Least step of any layout that fits, within the limits or not, with everything it relies on one
    deviation worse."""


def plan(
    job: Job,
    cluster: Cluster,
    stack: Stack | None = None,
    *,
    space: Space | None = None,
    fixed: Mapping[str, Any] | None = None,
    objective: Objective = "time",
    limits: Limits | None = None,
    top: int = 5,
    parameters: Parameters | None = None,
    progress: Progress | None = None,
    best_mfu: float | None = None,
    interruptible: bool = False,
) -> Plans:
    """`best_mfu`: the highest published for such a job on the device; above it, a warning."""
    used = stack or usual_stack(cluster.accelerator.vendor)
    result = search(
        job,
        cluster,
        used,
        space=space,
        fixed=fixed,
        objective=objective,
        limits=limits,
        parameters=parameters,
        progress=progress,
        interruptible=interruptible,
    )
    plans = []
    for index in _pick(result, top):
        layout = result.layouts[index]
        prediction = predict(job, cluster, layout, stack, parameters)
        plans.append(
            Plan(
                prediction=prediction,
                pessimistic_seconds=float(result.seconds[index]),
                complexity=complexity(layout),
                unmeasured=unmeasured(layout),
                warnings=_warnings(prediction, best_mfu),
            )
        )
    return Plans(
        plans=tuple(plans),
        count=result.count,
        complete=result.complete,
        smallest_bytes=result.smallest_bytes,
        fastest_seconds=result.fastest_seconds,
    )


def why_no_plan(answer: Plans, job: Job, cluster: Cluster, limits: Limits | None = None) -> str:
    """Why a search found no plan: nothing divides, or nothing fits."""
    if math.isinf(answer.smallest_bytes):
        most = max(answer.count.pruned, key=lambda reason: answer.count.pruned[reason])
        return (
            f"{cluster.gpus:,} GPUs and a batch of {job.global_batch:,} sequences divide into no "
            f"layout (mostly: {most})"
        )
    device = cluster.accelerator
    have = (limits or Limits()).headroom * (device.reported_bytes or device.hbm_bytes)
    return (
        f"the leanest layout needs {format_si(answer.smallest_bytes, 'B')} on a device, "
        f"{format_si(have, 'B')} may be filled"
    )


def _pick(result: SearchResult, top: int) -> list[int]:
    """Places of plans to try: one for each way to cut the model, each the plainest within a tie.

    Neighbours (another micro-batch, more context parallelism, another sharding of the same cut) would
    all fail or work together.
    """
    families: dict[tuple[int, ...], list[int]] = {}
    for index in range(len(result.layouts)):
        layout = result.layouts[index]
        family = (layout.tp, layout.pp, layout.ep, int(layout.cp > 1))
        families.setdefault(family, []).append(index)
        if len(families) > 4 * top and len(families[family]) == 1:
            break
    best = [_plainest(result, indices) for indices in families.values()]
    if not best:
        return []
    first = _plainest(result, sorted(best, key=lambda index: float(result.scores[index])))
    rest = sorted((p for p in best if p != first), key=lambda index: float(result.scores[index]))
    return [first, *rest][:top]


def _plainest(result: SearchResult, indices: list[int]) -> int:
    """The plan that relies on least, among those within a tie of the first."""
    least = float(result.scores[indices[0]])
    tied = [index for index in indices if result.scores[index] <= least * (1 + TIE)]

    def rests_on(index: int) -> tuple[int, int, float]:
        layout = result.layouts[index]
        return len(unmeasured(layout)), complexity(layout), float(result.scores[index])

    return min(tied, key=rests_on)


def complexity(layout: Layout) -> int:
    """Mechanisms beyond plain data parallelism with a split optimizer."""
    sizes = (layout.tp, layout.pp, layout.vp, layout.cp, layout.ep, layout.etp, layout.replicas)
    return (
        sum(size > 1 for size in sizes)
        + {"none": 0, "selective": 1, "full": 1}[layout.recompute]
        + (layout.sharding in ("fsdp", "zero3", "hsdp"))
        + 2 * (layout.schedule != "1f1b")
        + 2 * (layout.offload != "none")
        + (layout.context != "ring")
    )


def unmeasured(layout: Layout) -> tuple[str, ...]:
    names = [
        f"{field} {getattr(layout, field)}"
        for field, choices in _UNMEASURED.items()
        if getattr(layout, field) in choices
    ]
    if layout.tp > MEASURED_TP:
        names.append(f"tp {layout.tp}")
    if layout.cp > MEASURED_CP:
        names.append(f"cp {layout.cp}")
    return tuple(names)


def _warnings(prediction: Prediction, best_mfu: float | None) -> tuple[str, ...]:
    mfu = prediction.ledger.mfu
    if best_mfu is None or mfu is None or mfu <= best_mfu:
        return ()
    return (
        f"MFU {100 * mfu:.0f} % is above the highest published for such a job on this device "
        f"({100 * best_mfu:.0f} %)",
    )


def nearest_that_fits(
    job: Job, cluster: Cluster, stack: Stack, *, limits: Limits | None = None, doublings: int = 8
) -> tuple[int, Layout] | None:
    """The least number of GPUs, doubling, on which the job fits, and a layout for it."""
    for power in range(1, doublings + 1):
        gpus = cluster.gpus << power
        last = cluster.tiers[-1] if cluster.tiers else None
        if last is None or gpus > MAX_GPUS:
            return None
        tiers = (*cluster.tiers[:-1], replace(last, devices=max(last.devices, gpus)))
        larger = replace(cluster, gpus=gpus, tiers=tiers)
        result = search(job, larger, stack, limits=limits)
        if len(result.layouts):
            return gpus, result.layouts[0]
    return None
