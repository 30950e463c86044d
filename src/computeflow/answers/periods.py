"""Stretches of time as people write them: 30d, 12h, or two dates."""

from __future__ import annotations

import datetime
import re
import time

from computeflow.errors import InputError
from computeflow.units import DAY_SECONDS, HOUR_SECONDS, WEEK_SECONDS

_UNITS = {"m": 60.0, "h": HOUR_SECONDS, "d": DAY_SECONDS, "w": WEEK_SECONDS}
_AGO = re.compile(r"(\d{1,6})([mhdw])")


def parse_period(text: str | None) -> tuple[float | None, float | None]:
    """Unix times; `30d` ends now. Dates without a zone are UTC."""
    if text is None:
        return None, None
    if found := _AGO.fullmatch(text):
        now = time.time()
        return now - int(found[1]) * _UNITS[found[2]], now
    moments = _moments(text)
    if moments is None or not moments[0] < moments[1]:
        raise InputError(f"--period {text}: write 30d, 12h, or FROM:TO with ISO dates")
    return moments


def _moments(text: str) -> tuple[float, float] | None:
    """Two ISO dates with a colon between; times of day have colons, too."""
    for place, sign in enumerate(text):
        if sign == ":":
            try:
                return _moment(text[:place]), _moment(text[place + 1 :])
            except ValueError:
                continue
    return None


def _moment(text: str) -> float:
    found = datetime.datetime.fromisoformat(text)
    if found.tzinfo is None:
        found = found.replace(tzinfo=datetime.UTC)
    return found.timestamp()
