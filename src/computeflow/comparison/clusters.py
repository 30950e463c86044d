"""Clusters of an offer for a job: the smallest whose steps keep the deadline, then larger ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from computeflow.comparison.living import Setting
from computeflow.comparison.offers import Offering
from computeflow.comparison.quick import Planner, Shape
from computeflow.comparison.results import Refused
from computeflow.planning import Plan
from computeflow.simulation.run import MOST_DAYS
from computeflow.workload import flops_per_token

if TYPE_CHECKING:
    from computeflow.comparison.compare import Ask

FIRST_MFU = 0.4
"""That the first guess of a cluster's size assumes; every size that counts is planned."""
LEAST_GAIN = 0.9
"""A cluster twice as large that takes more than this share of the time is not worth a thought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    offering: Offering
    setting: Setting
    plan: Plan


def first_clusters(
    ask: Ask, offers: Sequence[Offering], planner: Planner
) -> tuple[list[Cluster], list[Refused]]:
    sized: list[Cluster] = []
    refused: list[Refused] = []
    for offering in offers:
        left = ask.seconds_at(offering)
        if left <= 0:
            refused.append(Refused(offering=offering, reason="the data arrive after the deadline"))
            continue
        found = _size(replace(ask, deadline_seconds=left), offering, planner)
        if isinstance(found, str):
            refused.append(Refused(offering=offering, reason=found))
        else:
            gpus, plan = found
            setting = Setting(
                shape=offering.shape, gpus=gpus, quality=offering.quality,
                most_gpus=None if offering.terms is None else offering.terms.most_gpus,
            )  # fmt: skip
            sized.append(Cluster(offering=offering, setting=setting, plan=plan))
    return sized, refused


def larger_cluster(ask: Ask, one: Cluster, planner: Planner) -> Cluster | None:
    """Of the next size; None where nobody has so many or the job has no layout on them."""
    sizes = [n for n in _sizes(ask, one.offering, planner) if n > one.setting.gpus]
    plan = planner.plan(one.offering.shape, sizes[0]) if sizes else None
    if plan is None:
        return None
    return replace(one, setting=replace(one.setting, gpus=sizes[0]), plan=plan)


def steps_seconds(ask: Ask, plan: Plan) -> float:
    """Of steps alone, if nothing fails."""
    return ask.tokens / ask.job.step_tokens * plan.prediction.step_seconds


def latest_seconds(ask: Ask, plan: Plan) -> float:
    """The same, at the pace that the deadline is asked for."""
    return pace(ask, plan) * steps_seconds(ask, plan)


def pace(ask: Ask, plan: Plan) -> float:
    """Of the step over the predicted one: of its range's end, where the deadline must hold there."""
    found = plan.prediction
    return found.step_seconds_range[1] / found.step_seconds if ask.sure else 1.0


def _size(ask: Ask, offering: Offering, planner: Planner) -> tuple[int, Plan] | str:
    """The smallest cluster, doubling from one machine, whose steps end before the deadline.

    Where none does, the fastest that is worth its size; where nothing fits, the reason.
    """
    if not planner.computes(offering.shape):
        return f"{offering.accelerator} has no peak in {ask.job.precision}"
    sizes = _sizes(ask, offering, planner)
    if not sizes:
        most = min(ask.most_gpus, offering.most_gpus or ask.most_gpus)
        whose = "its largest cluster has" if offering.most_gpus else "clusters considered have"
        return f"{whose} {most:,} GPUs: {max(ask.least_gpus, offering.devices):,} are asked for"
    place = _first_guess(ask, offering.shape, sizes, planner)
    found = _plan_from(sizes, place, offering.shape, planner)
    if found is None:
        return f"fits in no layout on up to {sizes[-1]:,} GPUs"
    place, plan = found
    if latest_seconds(ask, plan) > ask.deadline_seconds:
        return _larger(ask, offering.shape, sizes, place, plan, planner)
    while place > 0:
        smaller = planner.plan(offering.shape, sizes[place - 1])
        if smaller is None or latest_seconds(ask, smaller) > ask.deadline_seconds:
            break
        place, plan = place - 1, smaller
    return sizes[place], plan


def _larger(
    ask: Ask, shape: Shape, sizes: list[int], place: int, plan: Plan, planner: Planner
) -> tuple[int, Plan] | str:
    while place + 1 < len(sizes):
        larger = planner.plan(shape, sizes[place + 1])
        if larger is None or steps_seconds(ask, larger) > LEAST_GAIN * steps_seconds(ask, plan):
            break
        place, plan = place + 1, larger
        if latest_seconds(ask, plan) <= ask.deadline_seconds:
            break
    if steps_seconds(ask, plan) > MOST_DAYS * 86400:
        return f"takes more than {MOST_DAYS:,.0f} days on {sizes[place]:,} GPUs"
    return sizes[place], plan


def _sizes(ask: Ask, offering: Offering, planner: Planner) -> list[int]:
    """Whole machines, doubling: layouts divide them. A site of one's own has what it has: there the
    sizes between doublings, and all of it, are tried too, where the job has a layout on them.
    """
    most, devices = min(ask.most_gpus, offering.most_gpus or ask.most_gpus), offering.devices
    doublings = range(max(int(math.log2(max(most / devices, 1))) + 1, 0))
    sizes = {devices << power for power in doublings}
    if offering.own:
        between = {3 * devices << power for power in doublings} | {most // devices * devices}
        sizes |= {n for n in between if n <= most and planner.plan(offering.shape, n) is not None}
    return sorted(size for size in sizes if ask.least_gpus <= size <= most)


def _first_guess(ask: Ask, shape: Shape, sizes: list[int], planner: Planner) -> int:
    device = planner.catalog.accelerators[shape.accelerator]
    peak = device.dense_flops.get(ask.job.precision) or device.dense_flops.get("bf16") or 1e15
    flops = flops_per_token(ask.job.model, ask.job.seq_len).total * ask.tokens
    wanted = flops / (FIRST_MFU * peak * ask.deadline_seconds)
    return next((n for n, size in enumerate(sizes) if size >= wanted), len(sizes) - 1)


def _plan_from(
    sizes: list[int], place: int, shape: Shape, planner: Planner
) -> tuple[int, Plan] | None:
    """The first size from here on that holds the job."""
    for number in range(place, len(sizes)):
        plan = planner.plan(shape, sizes[number])
        if plan is not None:
            return number, plan
    return None
