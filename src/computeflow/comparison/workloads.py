"""What a kind of work asks of a place: the same comparison, read differently.

Training is predicted and simulated. Serving and chains of calls are in `serving`, and coarse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from computeflow.comparison.results import Comparison, Result
from computeflow.errors import UnknownNameError

Workload = Literal["frontier", "production", "exploration", "serving", "agentic"]
WORKLOADS: tuple[str, ...] = get_args(Workload)
TRAINING = ("frontier", "production", "exploration")
GOOD_NETWORK = 12.5e9
"""Bytes per second of a device, from which a network counts as one for training: 100 Gb/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    workload: str
    result: Result | None
    """None: nothing meets the ask."""
    commodity: bool
    """Whether compute without a training network does."""
    reason: str


def advise(found: Comparison, workload: str) -> Advice:
    if workload not in TRAINING:
        raise UnknownNameError("training workload", workload, TRAINING)
    if not found.meeting:
        return Advice(workload=workload, result=None, commodity=False,
                      reason="nothing meets deadline and budget")  # fmt: skip
    if workload == "exploration":
        return _exploration(found)
    good = [result for result in found.meeting if is_networked(result)]
    if workload == "frontier":
        reason = "the fastest P90 on a published network of 100 Gb/s a device and more"
        return _first(good, "frontier", lambda r: r.seconds[1], reason)
    return _first(good, "production", _steady_usd,
                  "the cheapest on such a network that nobody takes back")  # fmt: skip


def is_networked(result: Result) -> bool:
    """On a network that is published and made for training."""
    rate = result.offering.shape.nic_bytes_per_second or 0.0
    return result.offering.network_known and result.offering.joined and rate >= GOOD_NETWORK


def _steady_usd(result: Result) -> float:
    """On demand or reserved."""
    return min((c.usd for c in result.costs if c.meets and c.term != "spot"), default=math.inf)


def _first(
    among: list[Result], workload: str, key: Callable[[Result], float], reason: str
) -> Advice:
    best = min(among, key=key, default=None)
    if best is None or key(best) == math.inf:
        return Advice(workload=workload, result=None, commodity=False,
                      reason="nothing that meets the ask has a published training network")  # fmt: skip
    return Advice(workload=workload, result=best, commodity=False, reason=reason)


def _exploration(found: Comparison) -> Advice:
    """The cheapest, whatever it is; commodity where no training network is needed for it."""
    best = found.meeting[0]
    networked = next((r for r in found.meeting if is_networked(r)), None)
    if best.gpus <= best.offering.devices:
        reason = "commodity compute is fine for this: it runs in one machine, and needs no network"
        return Advice(workload="exploration", result=best, commodity=True, reason=reason)
    if not is_networked(best):
        least = "no offer with a training network meets the ask"
        if networked is not None and networked.best is not None and best.best is not None:
            more = networked.best.usd / best.best.usd - 1
            least = f"the cheapest with a training network costs {100 * more:.0f} % more"
        reason = f"commodity compute is fine for this: {least}"
        return Advice(workload="exploration", result=best, commodity=True, reason=reason)
    reason = "a training network pays for itself: the cheapest run is on one"
    return Advice(workload="exploration", result=best, commodity=False, reason=reason)
