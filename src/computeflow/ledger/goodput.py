"""`goodput_of`: how much of a run's time made lasting progress, from where its GPU-seconds went."""

from __future__ import annotations

import math
from collections.abc import Mapping

from computeflow.ledger.book import is_within

NO_PROGRESS = ("startup", "restart", "lost", "checkpoint", "evaluation", "idle", "unexplained")
"""Accounts outside of steps that were kept; all others are parts of a step."""


def goodput_of(booked: Mapping[str, float]) -> float | None:
    """The share of GPU-seconds, by account, that passed in steps that were kept.

        1 - (startup + restart + lost + checkpoint + evaluation + idle + unexplained) / all

    None where nothing is booked. Neglected: how fast the steps are. A run whose steps take twice as
    long as they should has the same goodput; its MFU and its findings tell.
    """
    all_seconds = math.fsum(booked.values())
    if all_seconds <= 0:
        return None
    kept = math.fsum(seconds for name, seconds in booked.items() if _in_kept_step(name))
    return kept / all_seconds


def _in_kept_step(account: str) -> bool:
    return not any(is_within(account, other) for other in NO_PROGRESS)
