"""Clusters of an offer for a job: the smallest whose steps keep the deadline, then larger ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from computeflow.comparison.offers import Offering
from computeflow.comparison.planner import MachineShape, Planner
from computeflow.comparison.request import ComparisonRequest
from computeflow.comparison.results import RefusedOffer
from computeflow.comparison.runs import RunSetup
from computeflow.planning import Plan
from computeflow.simulation.run_inputs import MAX_DAYS
from computeflow.units import DAY_SECONDS
from computeflow.workload import flops_per_token

_FIRST_MFU = 0.4
"""MFU assumed for the first guess of a cluster's size; every size that counts is planned."""
_MIN_GAIN = 0.9
"""A cluster twice as large that takes more than this share of the time is not considered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A cluster of an offer that may be simulated."""

    offering: Offering
    setting: RunSetup
    plan: Plan


def first_clusters(
    request: ComparisonRequest, offers: Sequence[Offering], planner: Planner
) -> tuple[list[Candidate], list[RefusedOffer]]:
    candidates: list[Candidate] = []
    refused: list[RefusedOffer] = []
    for offering in offers:
        left = request.seconds_left(offering.provider)
        if left <= 0:
            refused.append(
                RefusedOffer(offering=offering, reason="the data arrive after the deadline")
            )
            continue
        first = _size(replace(request, deadline_seconds=left), offering, planner)
        if isinstance(first, str):
            refused.append(RefusedOffer(offering=offering, reason=first))
        else:
            gpus, plan = first
            setting = RunSetup(
                shape=offering.shape,
                gpus=gpus,
                quality=offering.quality,
                most_gpus=None if offering.terms is None else offering.terms.most_gpus,
            )
            candidates.append(Candidate(offering=offering, setting=setting, plan=plan))
    return candidates, refused


def larger_cluster(
    request: ComparisonRequest, candidate: Candidate, planner: Planner
) -> Candidate | None:
    """The next size; None where the offer has no so many GPUs or the job has no layout on them."""
    sizes = [n for n in _sizes(request, candidate.offering, planner) if n > candidate.setting.gpus]
    plan = planner.plan(candidate.offering.shape, sizes[0]) if sizes else None
    if plan is None:
        return None
    return replace(candidate, setting=replace(candidate.setting, gpus=sizes[0]), plan=plan)


def steps_seconds(request: ComparisonRequest, plan: Plan) -> float:
    """Time of the steps alone, if nothing fails."""
    return request.tokens / request.job.step_tokens * plan.prediction.step_seconds


def latest_seconds(request: ComparisonRequest, plan: Plan) -> float:
    """Time of the steps at the pace for which the deadline must hold."""
    return pace(request, plan) * steps_seconds(request, plan)


def pace(request: ComparisonRequest, plan: Plan) -> float:
    """Factor on the predicted step: at the slow end of its range if the deadline must hold there."""
    prediction = plan.prediction
    return prediction.step_seconds_range[1] / prediction.step_seconds if request.sure else 1.0


def _size(
    request: ComparisonRequest, offering: Offering, planner: Planner
) -> tuple[int, Plan] | str:
    """The smallest cluster, doubling from one machine, whose steps end before the deadline.

    Where none does, the fastest that is worth its size; where nothing fits, the reason.
    """
    if not planner.computes(offering.shape):
        return f"{offering.accelerator} has no peak in {request.job.precision}"
    sizes = _sizes(request, offering, planner)
    if not sizes:
        most = min(request.most_gpus, offering.most_gpus or request.most_gpus)
        if offering.apart and offering.devices < request.least_gpus:
            return f"{request.least_gpus:,} GPUs are more than one machine, {offering.apart}"
        whose = "its largest cluster has" if offering.most_gpus else "clusters considered have"
        return f"{whose} {most:,} GPUs: {max(request.least_gpus, offering.devices):,} are needed"
    index = _first_guess(request, offering.shape, sizes, planner)
    planned = _plan_from(sizes, index, offering.shape, planner)
    if planned is None:
        if offering.apart:
            return f"does not fit in one machine, {offering.apart}"
        return f"fits in no layout on up to {sizes[-1]:,} GPUs"
    index, plan = planned
    if latest_seconds(request, plan) > request.deadline_seconds:
        return _larger(request, offering.shape, sizes, index, plan, planner)
    while index > 0:
        smaller = planner.plan(offering.shape, sizes[index - 1])
        if smaller is None or latest_seconds(request, smaller) > request.deadline_seconds:
            break
        index, plan = index - 1, smaller
    return sizes[index], plan


def _larger(
    request: ComparisonRequest,
    shape: MachineShape,
    sizes: list[int],
    index: int,
    plan: Plan,
    planner: Planner,
) -> tuple[int, Plan] | str:
    while index + 1 < len(sizes):
        larger = planner.plan(shape, sizes[index + 1])
        if larger is None or steps_seconds(request, larger) > _MIN_GAIN * steps_seconds(
            request, plan
        ):
            break
        index, plan = index + 1, larger
        if latest_seconds(request, plan) <= request.deadline_seconds:
            break
    if steps_seconds(request, plan) > MAX_DAYS * DAY_SECONDS:
        return f"takes more than {MAX_DAYS:,.0f} days on {sizes[index]:,} GPUs"
    return sizes[index], plan


def _sizes(request: ComparisonRequest, offering: Offering, planner: Planner) -> list[int]:
    """Whole machines, doubling: layouts divide them. A site of one's own has what it has: there the
    sizes between doublings, and all of it, are tried too, where the job has a layout on them.
    """
    most, devices = (
        min(request.most_gpus, offering.most_gpus or request.most_gpus),
        offering.devices,
    )
    doublings = range(max(int(math.log2(max(most / devices, 1))) + 1, 0))
    sizes = {devices << power for power in doublings}
    if offering.own:
        between = {3 * devices << power for power in doublings} | {most // devices * devices}
        sizes |= {n for n in between if n <= most and planner.plan(offering.shape, n) is not None}
    return sorted(size for size in sizes if request.least_gpus <= size <= most)


def _first_guess(
    request: ComparisonRequest, shape: MachineShape, sizes: list[int], planner: Planner
) -> int:
    device = planner.catalog.accelerators[shape.accelerator]
    peak = device.dense_flops.get(request.job.precision) or device.dense_flops.get("bf16") or 1e15
    flops = flops_per_token(request.job.model, request.job.seq_len).total * request.tokens
    wanted = flops / (_FIRST_MFU * peak * request.deadline_seconds)
    return next((n for n, size in enumerate(sizes) if size >= wanted), len(sizes) - 1)


def _plan_from(
    sizes: list[int], index: int, shape: MachineShape, planner: Planner
) -> tuple[int, Plan] | None:
    """The first size from here on that holds the job."""
    for number in range(index, len(sizes)):
        plan = planner.plan(shape, sizes[number])
        if plan is not None:
            return number, plan
    return None
