"""What a kind of work asks of a place: the same comparison, read differently.

Training is predicted and simulated. Serving and chains of calls are in `serving`, and coarse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from computeflow.comparison.costs import TermCost
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
    """On the term that the reason speaks of."""
    commodity: bool
    """Whether compute without a training network does."""
    reason: str


def advise(found: Comparison, workload: str) -> Advice:
    if workload not in TRAINING:
        raise UnknownNameError("training workload", workload, TRAINING)
    if not found.meeting:
        return Advice(
            workload=workload,
            result=None,
            cost=None,
            commodity=False,
            reason="nothing meets deadline and budget",
        )
    if workload == "exploration":
        return _exploration(found)
    if workload == "frontier":
        return _steady(
            found,
            workload,
            lambda cost: cost.p90_seconds or math.inf,
            "the least P90 on a published network of 100 Gb/s a device and more that nobody takes "
            "back; clusters are the cheapest that keep the deadline, so an earlier one asks for larger",
        )
    return _steady(
        found,
        workload,
        lambda cost: cost.usd,
        "the cheapest on a published network of 100 Gb/s a device and more, at a price that nobody "
        "takes back",
    )


def _is_networked(result: Result) -> bool:
    """On a network that is published and made for training."""
    rate = result.offering.shape.nic_bytes_per_second or 0.0
    return result.offering.network_known and result.offering.joined and rate >= _GOOD_NETWORK


def usable(result: Result, workload: str) -> list[TermCost]:
    """Terms that such work may run on, and that meet the request."""
    meeting = [cost for cost in result.costs if cost.meets]
    if workload == "exploration":
        return meeting
    return [cost for cost in meeting if cost.term != "spot" and _is_networked(result)]


def _steady(
    found: Comparison, workload: str, key: Callable[[TermCost], float], reason: str
) -> Advice:
    """The least by a key, on demand or reserved; prices in doubt only where there are no others."""
    terms = [(result, cost) for result in found.meeting for cost in usable(result, workload)]
    if not terms:
        return Advice(
            workload=workload,
            result=None,
            cost=None,
            commodity=False,
            reason="nothing that meets the ask has a published training network and a "
            "price that nobody takes back",
        )
    result, cost = min(terms, key=lambda one: (one[1].doubtful, key(one[1])))
    return Advice(workload=workload, result=result, cost=cost, commodity=False, reason=reason)


def _exploration(found: Comparison) -> Advice:
    """The cheapest, whatever it is; commodity where no training network is needed for it."""
    best = found.meeting[0]
    networked = next((r for r in found.meeting if _is_networked(r)), None)
    commodity = True
    if best.gpus <= best.offering.devices:
        reason = "commodity compute is fine for this: it runs in one machine, and needs no network"
    elif not _is_networked(best):
        least = "no offer with a training network meets the ask"
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
