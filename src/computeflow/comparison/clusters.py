"""Clusters of an offer for a job: the smallest whose steps keep the deadline, then larger ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from computeflow.catalog import Catalog
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
"""A larger cluster that takes more than this share of the time is not worth it where all are late."""
_SERIES = 2
"""Series of sizes: doublings, and those between them, which layouts divide less well."""
AHEAD = 6
"""Larger sizes that are looked at without a published network."""
Progress = Callable[[str], None]
"""Takes a line on how far a command is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A cluster of an offer that may be simulated."""

    offering: Offering
    setting: RunSetup
    plan: Plan


def silent(text: str) -> None:
    """Progress that nobody sees."""


def first_clusters(
    request: ComparisonRequest,
    offers: Sequence[Offering],
    planner: Planner,
    progress: Progress = silent,
) -> tuple[list[Candidate], list[RefusedOffer]]:
    candidates: list[Candidate] = []
    refused: list[RefusedOffer] = []
    for number, offering in enumerate(offers, 1):
        progress(f"planning: offer {number:,} of {len(offers):,}, {planner.searches:,} plans")
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


def larger_clusters(
    request: ComparisonRequest, candidate: Candidate, planner: Planner
) -> Iterator[Candidate]:
    """Larger sizes of the offer on which the job has a layout, the next first.

    Without a published network, only `AHEAD` of them: steps get slower with every one there.
    """
    sizes = [n for n in _sizes(request, candidate.offering) if n > candidate.setting.gpus]
    for gpus in sizes if candidate.offering.network_known else sizes[:AHEAD]:
        plan = planner.plan(candidate.offering.shape, gpus)
        if plan is not None:
            yield replace(candidate, setting=replace(candidate.setting, gpus=gpus), plan=plan)


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
    """The smallest cluster whose steps end before the deadline.

    Where none does, the fastest that is worth its size; where nothing fits, the reason.
    """
    if not planner.computes(offering.shape):
        return f"{offering.accelerator} has no peak in {request.job.precision}"
    sizes = _sizes(request, offering)
    if not sizes:
        most = min(request.most_gpus, offering.most_gpus or request.most_gpus)
        if offering.apart and offering.devices < request.least_gpus:
            return f"{request.least_gpus:,} GPUs are more than one machine, {offering.apart}"
        whose = "its largest cluster has" if offering.most_gpus else "clusters considered have"
        return f"{whose} {most:,} GPUs: {max(request.least_gpus, offering.devices):,} are needed"
    guess = _first_guess(request, offering.shape, sizes, planner)
    first = _in_time(request, offering.shape, sizes, guess, planner)
    if first is None:
        first = _fastest(request, offering.shape, sizes[guess:], planner)
    if first is not None:
        gpus, plan = first
        if steps_seconds(request, plan) > MAX_DAYS * DAY_SECONDS:
            return f"takes more than {MAX_DAYS:,.0f} days on {gpus:,} GPUs"
        return first
    if offering.apart:
        return f"does not fit in one machine, {offering.apart}"
    return f"fits in no layout on up to {sizes[-1]:,} GPUs"


def _in_time(
    request: ComparisonRequest, shape: MachineShape, sizes: list[int], guess: int, planner: Planner
) -> tuple[int, Plan] | None:
    """The smallest size whose steps end before the deadline.

    Doublings, and the sizes between them, each take less time the larger they are, until they take
    more: two late ones on the way down, or two on the way up that are no faster, end the search.
    """

    def planned(gpus: int) -> Plan | None:
        return planner.plan(shape, gpus)

    def is_late(plan: Plan | None) -> bool:
        return plan is None or latest_seconds(request, plan) > request.deadline_seconds

    first, late = None, 0
    for gpus in reversed(sizes[: guess + 1]):
        plan = planned(gpus)
        late = late + 1 if is_late(plan) else 0
        if plan is not None and not late:
            first = gpus, plan
        if late == _SERIES:
            break
    if first is not None:
        return first
    fastest, slower = math.inf, 0
    for gpus in sizes[guess:]:
        plan = planned(gpus)
        if plan is None:
            continue
        if not is_late(plan):
            return gpus, plan
        took = steps_seconds(request, plan)
        slower = slower + 1 if took >= fastest else 0
        fastest = min(fastest, took)
        if slower == _SERIES:
            break
    return None


def _fastest(
    request: ComparisonRequest, shape: MachineShape, sizes: list[int], planner: Planner
) -> tuple[int, Plan] | None:
    """The first size with a layout, and larger ones as far as they are worth it."""
    first, slower = None, 0
    for gpus in sizes:
        plan = planner.plan(shape, gpus)
        if plan is None:
            continue
        least = math.inf if first is None else _MIN_GAIN * steps_seconds(request, first[1])
        slower = slower + 1 if steps_seconds(request, plan) > least else 0
        if not slower:
            first = gpus, plan
        if slower == _SERIES:
            break
    return first


def _sizes(request: ComparisonRequest, offering: Offering) -> list[int]:
    sizes = sizes_of(request, offering.devices, offering.most_gpus)
    if offering.own and offering.most_gpus is not None:
        most = min(request.most_gpus, offering.most_gpus)
        whole = most // offering.devices * offering.devices
        sizes = sorted({*sizes, *([whole] if whole >= max(request.least_gpus, 1) else [])})
    return sizes


def sizes_of(request: ComparisonRequest, devices: int, most_gpus: int | None) -> list[int]:
    """Whole machines, doubling, and the sizes between doublings: the same whatever the deadline."""
    most = min(request.most_gpus, most_gpus or request.most_gpus)
    doublings = range(max(int(math.log2(max(most / devices, 1))) + 1, 0))
    sizes = {times * devices << power for power in doublings for times in (1, 3)}
    return sorted(size for size in sizes if request.least_gpus <= size <= most)


def least_seconds(
    request: ComparisonRequest, accelerator: str, gpus: int, catalog: Catalog
) -> float:
    """Time of the job's FLOPs at the device's peak: no plan takes less."""
    device = catalog.accelerators[accelerator]
    peak = device.dense_flops.get(request.job.precision) or device.dense_flops.get("bf16") or 1e15
    flops = flops_per_token(request.job.model, request.job.seq_len).total * request.tokens
    return flops / peak / gpus


def _first_guess(
    request: ComparisonRequest, shape: MachineShape, sizes: list[int], planner: Planner
) -> int:
    gpu_seconds = least_seconds(request, shape.accelerator, 1, planner.catalog)
    wanted = gpu_seconds / (_FIRST_MFU * request.deadline_seconds)
    return next((n for n, size in enumerate(sizes) if size >= wanted), len(sizes) - 1)
