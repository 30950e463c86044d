"""Times as logs write them: read as UTC without a zone, only as differences without a year."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from functools import lru_cache

from computeflow.telemetry.logs import mlperf_lines
from computeflow.units import DAY_SECONDS, HOUR_SECONDS

_TIME = r"(?P<{0}h>\d\d):(?P<{0}m>\d\d):(?P<{0}s>\d\d)(?:[.,](?P<{0}f>\d{{1,9}}))?"
_STAMP = re.compile(
    rf"(?P<y>\d{{4}})[-/](?P<mo>\d\d)[-/](?P<d>\d\d)[T ]{_TIME.format('a')}(?P<zone>Z|[+-]\d\d:?\d\d)?"
    rf"|(?<!\d)(?P<hmo>\d\d)/(?P<hd>\d\d)/(?P<hy>\d{{4}}|\d\d) {_TIME.format('b')}"
    rf"|(?:^|(?<=[\[\s]))[IWEF](?P<gmo>\d\d)(?P<gd>\d\d) {_TIME.format('c')}"
    rf"|(?:^|(?<=^\[))(?P<nmo>\d\d)/(?P<nd>\d\d) {_TIME.format('e')}[ \]]"
)
_KINDS = (("", "a"), ("h", "b"), ("g", "c"), ("n", "e"))
"""Prefix and letter of the groups in `_STAMP`, for each way to write a date and a time."""
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_DATE = 12
"""Characters of a date and its separators."""
_NEAR = 60
"""A time that starts further into a line is part of its message."""
_FAR = 200
_ANNOUNCED = ("datetime: ", " AT ")
_NO_YEAR = 2000
"""Stands in for a year that is not written; a leap year."""
_YEAR = 366 * DAY_SECONDS


class LineClock:
    """The times of a file's lines; one without a year takes that of earlier lines, or follows them."""

    def __init__(self) -> None:
        self.now = 0.0
        """The latest time so far."""
        self._year_known = False
        self._years = 0.0
        self._last: float | None = None

    def take(self, text: str) -> tuple[float, bool] | None:
        """Unix seconds of a line and whether the year is known."""
        stamp = line_time(text)
        if stamp is None:
            return None
        seconds, dated = stamp
        self._year_known = self._year_known or dated
        if not dated:
            in_year = self._year_known
            seconds = _with_year(seconds, self.now) if in_year else self._continue(seconds)
        self.now = max(self.now, seconds)
        return seconds, self._year_known

    def _continue(self, seconds: float) -> float:
        """The time after earlier ones: January after December is the next year."""
        seconds += self._years
        if self._last is not None and seconds < self._last - _YEAR / 2:
            self._years += _YEAR
            seconds += _YEAR
        self._last = seconds
        return seconds


def line_time(text: str) -> tuple[float, bool] | None:
    """The time of a line, by `time_of`; for an MLPerf line, the time in its JSON."""
    if mlperf_lines.MARK not in text:
        return time_of(text)
    at = mlperf_lines.time_of(text)
    return None if at is None else (at, True)


def time_of(text: str) -> tuple[float, bool] | None:
    """Unix seconds and whether the year is known; the year 2000 stands in for an unknown one."""
    match = _stamp(text)
    if match is None:
        return None
    groups = match.groupdict()
    prefix, letter = next(kind for kind in _KINDS if groups[f"{kind[0]}mo"] is not None)
    year = groups.get(f"{prefix}y")
    if year and len(year) == 2:
        year = f"20{year}"
    day = _day(int(year or _NO_YEAR), int(groups[f"{prefix}mo"]), int(groups[f"{prefix}d"]))
    if day is None:
        return None
    seconds = day + int(groups[f"{letter}h"]) * HOUR_SECONDS + int(groups[f"{letter}m"]) * 60
    seconds += int(groups[f"{letter}s"]) + float(f"0.{groups[f'{letter}f'] or 0}")
    return seconds - _zone(groups["zone"]), year is not None


def _stamp(text: str) -> re.Match[str] | None:
    """The time that a line begins with or announces."""
    clock = _CLOCK.search(text, 0, _FAR)  # most lines end here
    match = _STAMP.search(text, max(0, clock.start() - _DATE), _FAR) if clock else None
    if match is None:
        return None
    start = match.start()
    return match if start <= _NEAR or text[:start].endswith(_ANNOUNCED) else None


@lru_cache(maxsize=4096)
def _day(year: int, month: int, day: int) -> float | None:
    try:
        midnight = datetime.combine(date(year, month, day), datetime.min.time(), UTC)
    except ValueError:
        return None
    return midnight.timestamp()


def _with_year(seconds: float, near: float) -> float:
    """A time without a year, put into the year that brings it closest to `near`."""
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
