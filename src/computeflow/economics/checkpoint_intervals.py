"""How often to save: what saves and failures cost at an interval, and the interval that costs least.

Young (CACM 17:9, 1974): sqrt(2 w M). Daly (FGCS 22:3, 2006, eq. 37): a higher order of the same,
for w < 2 M, else M. w is the time that a save blocks training, M the mean time between
interruptions. Both assume that interruptions come at a constant rate and that a save is safe as
soon as it stops blocking.
"""

from __future__ import annotations

import math

from computeflow.errors import InputError

_TAIL = 0.025
"""Chance on either side of a range of 95 %."""


def young_seconds(write_seconds: float, between_seconds: float) -> float:
    _check(write_seconds, between_seconds)
    return math.sqrt(2 * write_seconds * between_seconds)


def daly_seconds(write_seconds: float, between_seconds: float) -> float:
    _check(write_seconds, between_seconds)
    if write_seconds >= 2 * between_seconds:
        return between_seconds
    part = write_seconds / (2 * between_seconds)
    root = math.sqrt(2 * write_seconds * between_seconds)
    return root * (1 + math.sqrt(part) / 3 + part / 9) - write_seconds


def saving_cost(interval_seconds: float, write_seconds: float, failures_per_second: float) -> float:
    """Seconds of saving and of work done again, for each second of work: Young's first order.

    A failure comes in the middle of an interval on average: half of it and the save are lost.
    Neglected: two failures in one interval, and what a restart takes, which no interval changes.
    """
    saving = write_seconds / interval_seconds
    return saving + failures_per_second * (interval_seconds / 2 + write_seconds)


def poisson_range(count: int) -> tuple[float, float]:
    """Means for which so many events, or more, and so many, or fewer, have a chance of 2.5 %."""
    high = _mean_with(count, _TAIL, float(count), count + 10 * math.sqrt(count + 1) + 10)
    if not count:
        return 0.0, high
    return _mean_with(count - 1, 1 - _TAIL, 0.0, float(count)), high


def _mean_with(count: int, chance: float, low: float, high: float) -> float:
    """The mean at which at most `count` events have this chance, by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(count, middle) > chance:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _at_most(count: int, mean: float) -> float:
    logs = (k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(count + 1))
    return math.fsum(map(math.exp, logs)) if mean > 0 else 1.0


def _check(write_seconds: float, between_seconds: float) -> None:
    if not (write_seconds >= 0 and between_seconds > 0):
        raise InputError(
            f"a write of {write_seconds:g} s and {between_seconds:g} s between interruptions: "
            "the first is zero or more, the second more than zero"
        )
