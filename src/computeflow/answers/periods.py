"""Periods as people write them: 30d, 12h, or two dates."""

from __future__ import annotations

import datetime
import re
import time

from computeflow.errors import InputError
from computeflow.units import DAY_SECONDS, HOUR_SECONDS, WEEK_SECONDS

_UNITS = {"m": 60.0, "h": HOUR_SECONDS, "d": DAY_SECONDS, "w": WEEK_SECONDS}
_AGO = re.compile(r"(\d{1,6})([mhdw])")
_MAX_CHARACTERS = 100
"""Two dates with nanoseconds and zones to the microsecond are 91; each colon of a text is tried."""


def parse_period(text: str | None) -> tuple[float | None, float | None]:
    """Start and end as Unix times; `30d` ends now. Dates without a zone are UTC."""
    if text is None:
        return None, None
    if ago := _AGO.fullmatch(text):
        now = time.time()
        return now - int(ago[1]) * _UNITS[ago[2]], now
    moments = _moments(text)
    if moments is None or not moments[0] < moments[1]:
        raise InputError(f"--period {text}: write 30d, 12h, or FROM:TO with ISO dates")
    return moments


def _moments(text: str) -> tuple[float, float] | None:
    """Two ISO dates with a colon between; times of day have colons, too."""
    if len(text) > _MAX_CHARACTERS:
        return None
    for index, character in enumerate(text):
        if character == ":":
            try:
                return _moment(text[:index]), _moment(text[index + 1 :])
            except ValueError:
                continue
    return None


def _moment(text: str) -> float:
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp()
