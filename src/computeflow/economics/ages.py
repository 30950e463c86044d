"""How old a dated fact is. The day is passed in: nothing here reads a clock."""

from __future__ import annotations

import datetime

STALE_DAYS = 180
"""Prices older than this are flagged. They move both ways within half a year: AWS's P5 fell from 98.32
to 55.04 $ an hour in June 2025, one-year H100 contracts rose from 1.70 to 2.35 $ between October 2025
and March 2026 (SemiAnalysis)."""


def age_days(as_of: str, today: datetime.date) -> int:
    """Days since the earliest day that `as_of` (a day, a month or a year) can mean."""
    first = datetime.date.fromisoformat((as_of + "-01-01")[:10])
    return (today - first).days


def is_stale(as_of: str, today: datetime.date, limit_days: int = STALE_DAYS) -> bool:
    """Whether it may be older than that. A date in the future is not."""
    return age_days(as_of, today) > limit_days
