"""Recommendations by kind of work: the same comparison, with other requirements.

Training is predicted and simulated. Serving and chains of calls are in `serving`, and coarse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from computeflow.comparison.costs import TermCost
from computeflow.comparison.offers import Offering
from computeflow.comparison.results import Comparison, Result
from computeflow.errors import UnknownNameError

TRAINING = ("frontier", "production", "exploration")
_GOOD_NETWORK = 12.5e9
"""Bytes per second of a device, from which a network counts as one for training: 100 Gb/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    workload: str
    result: Result | None
    """None: nothing meets the request."""
    cost: TermCost | None
    """Cost on the term that the reason names."""
    commodity: bool
    """Whether compute without a training network is sufficient."""
    reason: str


def advise(comparison: Comparison, workload: str, *, unproven: bool = False) -> Advice:
    """`unproven`: whether devices may be recommended of which no run was measured."""
    if workload not in TRAINING:
        raise UnknownNameError("training workload", workload, TRAINING)
    if not comparison.meeting:
        return _nothing(workload, "nothing meets deadline and budget")
    if workload == "exploration":
        return _exploration(comparison, unproven=unproven)
    if workload == "frontier":
        return _steady(
            comparison,
            workload,
            lambda cost: cost.p90_seconds or math.inf,
            "the least P90 on non-preemptible capacity with a published network of at least 100 Gb/s "
            "a device; clusters are the cheapest that keep the deadline, so an earlier one asks for "
            "larger",
            unproven=unproven,
        )
    return _steady(
        comparison,
        workload,
        lambda cost: cost.usd,
        "the cheapest non-preemptible capacity with a published network of at least 100 Gb/s a "
        "device",
        unproven=unproven,
    )


def is_networked(offering: Offering) -> bool:
    """Whether the network is published and made for training."""
    rate = offering.shape.nic_bytes_per_second or 0.0
    return offering.network_known and offering.joined and rate >= _GOOD_NETWORK


def is_proven(cost: TermCost) -> bool:
    """Whether a run of the device was measured."""
    return cost.run is not None and cost.run.plan.prediction.evidence.proven


def usable(result: Result, workload: str, *, unproven: bool = False) -> list[TermCost]:
    """Terms that meet the request and that the workload may use."""
    meeting = [cost for cost in result.costs if cost.meets and (unproven or is_proven(cost))]
    if workload == "exploration":
        return meeting
    return [cost for cost in meeting if cost.term != "spot" and _has_network_for(result, cost)]


def _has_network_for(result: Result, cost: TermCost) -> bool:
    """A run in one machine needs none."""
    alone = cost.run is not None and cost.run.gpus <= result.offering.devices
    return alone or is_networked(result.offering)


def _steady(
    comparison: Comparison,
    workload: str,
    key: Callable[[TermCost], float],
    reason: str,
    *,
    unproven: bool,
) -> Advice:
    """The result with the least key, on-demand or reserved; doubtful prices are the last choice."""
    terms = [
        (result, cost)
        for result in comparison.meeting
        for cost in usable(result, workload, unproven=unproven)
    ]
    if not terms:
        return _nothing(
            workload,
            "no offer that meets the request is non-preemptible capacity with a published training "
            "network, of a device with measured runs",
        )
    result, cost = min(
        terms, key=lambda pair: (pair[1].doubtful, key(pair[1]), pair[0].offering.name)
    )
    return Advice(workload=workload, result=result, cost=cost, commodity=False, reason=reason)


def _nothing(workload: str, reason: str) -> Advice:
    return Advice(workload=workload, result=None, cost=None, commodity=False, reason=reason)


def _exploration(comparison: Comparison, *, unproven: bool) -> Advice:
    """The cheapest result; commodity where it needs no training network."""
    allowed = [r for r in comparison.meeting if usable(r, "exploration", unproven=unproven)]
    if not allowed:
        return _nothing("exploration", "nothing that meets the request has measured runs")
    best = allowed[0]
    networked = next((r for r in allowed if is_networked(r.offering)), None)
    commodity = True
    if best.gpus <= best.offering.devices:
        reason = "commodity compute is fine for this: it runs in one machine, and needs no network"
    elif not is_networked(best.offering):
        least = "no offer with a training network meets the request"
        if networked is not None and networked.best is not None and best.best is not None:
            more = networked.best.usd / best.best.usd - 1
            least = f"the cheapest with a training network costs {100 * more:.0f} % more"
        reason = f"commodity compute is fine for this: {least}"
    else:
        commodity = False
        reason = "a training network pays for itself: the cheapest run is on one"
    return Advice(
        workload="exploration", result=best, cost=best.best, commodity=commodity, reason=reason
    )
