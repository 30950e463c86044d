"""Times as logs write them. Without a zone they are read as UTC, without a year only as a distance."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from functools import lru_cache

from computeflow.telemetry.logs import mllog
from computeflow.units import DAY_SECONDS, HOUR_SECONDS

_TIME = r"(?P<{0}h>\d\d):(?P<{0}m>\d\d):(?P<{0}s>\d\d)(?:[.,](?P<{0}f>\d{{1,9}}))?"
_STAMP = re.compile(
    rf"(?P<y>\d{{4}})-(?P<mo>\d\d)-(?P<d>\d\d)[T ]{_TIME.format('a')}(?P<zone>Z|[+-]\d\d:?\d\d)?"
    rf"|(?<!\d)(?P<hmo>\d\d)/(?P<hd>\d\d)/(?P<hy>\d{{4}}) {_TIME.format('b')}"
    rf"|(?:^|(?<=[\[\s]))[IWEF](?P<gmo>\d\d)(?P<gd>\d\d) {_TIME.format('c')}"
    rf"|^(?P<nmo>\d\d)/(?P<nd>\d\d) {_TIME.format('e')} \["
)
_KINDS = (("", "a"), ("h", "b"), ("g", "c"), ("n", "e"))
"""What the groups of each way to write a date and a time are named by."""
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_DATE = 12
"""A date and what stands around it."""
_NEAR = 60
"""A time further into a line is part of what the line says."""
_FAR = 200
_ANNOUNCED = ("datetime: ", " AT ")
_NO_YEAR = 2000
"""Stands in for a year that is not written; a leap year."""
_YEAR = 366 * DAY_SECONDS


class LineClock:
    """The times of a file's lines. Without a year, they are in that of lines before, or go on."""

    def __init__(self) -> None:
        self.now = 0.0
        """The latest time so far."""
        self._year_known = False
        self._years = 0.0
        self._last: float | None = None

    def take(self, text: str) -> tuple[float, bool] | None:
        """Unix seconds of a line and whether the year is known."""
        stamp = stamp_of(text)
        if stamp is None:
            return None
        seconds, dated = stamp
        self._year_known = self._year_known or dated
        if not dated:
            in_year = self._year_known
            seconds = _with_year(seconds, self.now) if in_year else self._go_on(seconds)
        self.now = max(self.now, seconds)
        return seconds, self._year_known

    def _go_on(self, seconds: float) -> float:
        """January after December is the next year."""
        seconds += self._years
        if self._last is not None and seconds < self._last - _YEAR / 2:
            self._years += _YEAR
            seconds += _YEAR
        self._last = seconds
        return seconds


def stamp_of(text: str) -> tuple[float, bool] | None:
    """As `time_of`; of an MLPerf line, the time that its JSON has."""
    if mllog.MARK not in text:
        return time_of(text)
    at = mllog.time_of(text)
    return None if at is None else (at, True)


def time_of(text: str) -> tuple[float, bool] | None:
    """Unix seconds and whether the year is known; the year 2000 stands in for an unknown one."""
    found = _stamp(text)
    if found is None:
        return None
    got = found.groupdict()
    prefix, letter = next(kind for kind in _KINDS if got[f"{kind[0]}mo"] is not None)
    year = got.get(f"{prefix}y")
    day = _day(int(year or _NO_YEAR), int(got[f"{prefix}mo"]), int(got[f"{prefix}d"]))
    if day is None:
        return None
    seconds = day + int(got[f"{letter}h"]) * HOUR_SECONDS + int(got[f"{letter}m"]) * 60
    seconds += int(got[f"{letter}s"]) + float(f"0.{got[f'{letter}f'] or 0}")
    return seconds - _zone(got["zone"]), year is not None


def _stamp(text: str) -> re.Match[str] | None:
    """The time that a line begins with, or announces."""
    clock = _CLOCK.search(text, 0, _FAR)  # most lines end here
    found = _STAMP.search(text, max(0, clock.start() - _DATE), _FAR) if clock else None
    if found is None:
        return None
    start = found.start()
    return found if start <= _NEAR or text[:start].endswith(_ANNOUNCED) else None


@lru_cache(maxsize=4096)
def _day(year: int, month: int, day: int) -> float | None:
    try:
        midnight = datetime.combine(date(year, month, day), datetime.min.time(), UTC)
    except ValueError:
        return None
    return midnight.timestamp()


def _with_year(seconds: float, near: float) -> float:
    """A time read without its year, in the year that brings it nearest to another."""
    day, rest = divmod(seconds, DAY_SECONDS)
    near_year = datetime.fromtimestamp(near, UTC).year
    return min(
        (start + rest for start in _in_years(int(day), near_year)), key=lambda at: abs(at - near)
    )


@lru_cache(maxsize=4096)
def _in_years(day: int, year: int) -> tuple[float, ...]:
    at = datetime.fromtimestamp(day * DAY_SECONDS, UTC)
    days = (_day(y, at.month, at.day) for y in (year - 1, year, year + 1))
    return tuple(start for start in days if start is not None) or (day * DAY_SECONDS,)


def _zone(text: str | None) -> float:
    if not text or text == "Z":
        return 0.0
    sign = -1 if text[0] == "-" else 1
    return sign * (int(text[1:3]) * HOUR_SECONDS + int(text[-2:]) * 60.0)
