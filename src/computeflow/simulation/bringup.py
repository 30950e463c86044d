"""From handover to target throughput: bad nodes are found and replaced, and the cluster is tuned.

A round of burn-in finds each bad node with some chance; the found ones come back after the
support's response, some of them bad again. It ends when no more nodes are bad than there are
spares. Beside it, after the first burn-in, every round of tuning closes a part of the gap to what
the job should reach, until it is at the target. The cluster is up when both are done.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from computeflow.errors import InputError
from computeflow.simulation.draws import Floats

_MAX_ROUNDS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class BringUp:
    defective: float
    """Share of nodes that are bad at handover."""
    recall: float
    """Share of bad nodes that one burn-in finds."""
    burn_in_days: float
    response_days: float
    """From a report to a node that is back."""
    bad_again: float
    """Share of nodes that come back as bad as they went."""
    gap: float
    """Share of the expected throughput that is missing at first."""
    closed: float
    """Share of the gap that a round of tuning closes."""
    round_days: float

    def __post_init__(self) -> None:
        for name in ("defective", "recall", "bad_again", "gap", "closed"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} = {getattr(self, name):g}: a share lies between 0 and 1")
        if self.bad_again == 1 or not self.recall or not self.closed:
            raise InputError("bad nodes are never found or mended, or nothing is ever tuned")
        for name in ("burn_in_days", "response_days", "round_days"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} = {getattr(self, name):g}: zero or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class BringUpTimes:
    """One row a replica."""

    repair_days: Floats
    """Until enough nodes are good."""
    tuning_days: float
    """Until the good ones are fast; from the same start."""

    @property
    def days_to_target_throughput(self) -> Floats:
        return np.maximum(self.repair_days, self.tuning_days)


def bring_up(
    site: BringUp, *, nodes: int, spares: int, target: float, replicas: int, seed: int = 0
) -> BringUpTimes:
    """`target`: share of the expected throughput at which the cluster counts as up."""
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, nodes])))
    bad = random.binomial(nodes + spares, site.defective, replicas)
    days = np.zeros(replicas)
    for _ in range(_MAX_ROUNDS):
        going = bad > spares
        days += site.burn_in_days * (going | (days == 0))
        if not going.any():
            break
        found = np.where(going, random.binomial(bad, site.recall), 0)
        days += np.where(found > 0, site.response_days, 0.0)
        bad = bad - found + random.binomial(found, site.bad_again)
    tuning = site.burn_in_days + tuning_rounds(site, target) * site.round_days
    return BringUpTimes(repair_days=days, tuning_days=tuning)


def tuning_rounds(site: BringUp, target: float) -> int:
    if not 0 < target < 1:
        raise InputError(f"a target of {target:g} of the expected throughput: between 0 and 1")
    left = 1 - target
    if site.gap <= left:
        return 0
    if site.closed == 1:
        return 1
    return math.ceil(math.log(left / site.gap) / math.log(1 - site.closed) - 1e-9)


def of_values(values: Mapping[str, float]) -> BringUp:
    return BringUp(**{field.name: values[field.name] for field in fields(BringUp)})
