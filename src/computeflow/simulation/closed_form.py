"""The expected share of productive time in closed form, without simulating.

`meta_ettr` is the formula of arXiv:2410.21680, a small-loss approximation. `exact_ettr` is the
renewal argument behind Daly's interval (FGCS 22:3, 2006, eq. 20): interruptions at a constant rate
in wall time, also while recovering; equal intervals; a save is safe when it stops blocking. The
simulator gives the same where these assumptions hold.
"""

from __future__ import annotations

import math

from computeflow.errors import InputError


def meta_ettr(
    *, per_second: float, recovery_seconds: float, interval_seconds: float, write_seconds: float
) -> float:
    """(1 - rate (u + interval / 2)) / (1 + w / interval), not below zero."""
    _check(per_second, interval_seconds)
    kept = 1 - per_second * (recovery_seconds + interval_seconds / 2)
    return max(kept, 0.0) / (1 + write_seconds / interval_seconds)


def exact_ettr(
    *, per_second: float, recovery_seconds: float, interval_seconds: float, write_seconds: float
) -> float:
    """interval over its expected wall time, exp(rate u) (exp(rate (interval + w)) - 1) / rate."""
    _check(per_second, interval_seconds)
    cycle = interval_seconds + write_seconds
    if per_second == 0:
        return interval_seconds / cycle
    if per_second * (cycle + recovery_seconds) > 700:
        return 0.0
    wall = math.exp(per_second * recovery_seconds) * math.expm1(per_second * cycle) / per_second
    return interval_seconds / max(wall, cycle)  # equal but for rounding where nothing fails


def _check(per_second: float, interval_seconds: float) -> None:
    if not (per_second >= 0 and interval_seconds > 0):
        raise InputError("a rate is zero or more, an interval more than zero")
