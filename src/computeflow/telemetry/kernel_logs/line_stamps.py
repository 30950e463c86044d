"""The time and node of a log line: `stamp_of`.

Forms: /dev/kmsg, dmesg (plain, -T, -x, --time-format iso), syslog with and without a year,
journalctl (short forms and JSON), the fabric manager's log. A clock is "unix" (absolute), "boot"
(seconds since the node booted) or "no year" (a date whose year is not written).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from computeflow import codec
from computeflow.errors import InputError
from computeflow.files.limits import HOST_CHARACTERS

Clock = Literal["unix", "boot", "no year", "none"]
_MONTHS = {
    name: number
    for number, name in enumerate(
        "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), start=1
    )
}
_MONTH = "|".join(_MONTHS)
_KMSG = re.compile(r"\d{1,9},\d{1,18},(\d{1,18}),[^;]*;(.*)")
_LEVEL = re.compile(r"(?:<\d+>|[a-z0-9]+ *: *[a-z]+ *: *)")
_BOOT = re.compile(r"\[ *(\d{1,12}\.\d{3,6})\](?:\[ *[TC]\d+\])? ?(.*)")
_CTIME = re.compile(
    rf"\[[A-Z][a-z]{{2}} ({_MONTH}) +(\d\d?) (\d\d):(\d\d):(\d\d) (\d{{4}})\] (?!\[)(.*)"
)
_FABRIC = re.compile(
    rf"\[({_MONTH}) +(\d\d?) (\d{{4}}) (\d\d):(\d\d):(\d\d)\] (\[\w+\] \[tid \d+\] .*)"
)
_ISO = re.compile(
    r"(?:[A-Z][a-z]{2} )?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)[.,]?(\d{0,9}) ?"
    r"(Z|UTC|[+-]\d\d:?\d\d)?\s+(.*)"
)
_SYSLOG = re.compile(rf"({_MONTH}) +(\d\d?) (\d\d):(\d\d):(\d\d)(\.\d{{1,9}})? (.*)")
_TAGGED = re.compile(r"(\S+) ([\w./@-]+)(?:\[\d+\])?: (?:\[ *\d+\.\d+\] ?)?(.*)")
_LEAP = 2000
"""A leap year, in which every date exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    clock: Clock
    seconds: float
    """Seconds on that clock; a date without a year is put in 2000."""
    node: str
    tag: str
    """The writer: kernel, systemd; "" where the form does not say."""
    text: str


def stamp_of(line: str) -> Stamp | None:
    """The stamp of a line; None where it has none and continues the line before."""
    first = line[:1]
    if first == "{":
        return _journal(line)
    if first.isdigit() and (match := _KMSG.match(line)):
        return _stamp("boot", int(match[1]) / 1e6, match[2])
    if first.islower() or first == "<":
        line = line[level.end() :] if (level := _LEVEL.match(line)) else line
        first = line[:1]
    if first == "[":
        return _bracketed(line)
    if first in "JFMASONDTW" and (match := _SYSLOG.match(line)):
        month, day, *clock, fraction = match.groups()[:6]
        seconds = _date(_LEAP, month, day, clock, fraction)
        return None if seconds is None else _tagged("no year", seconds, match[7])
    if match := _ISO.match(line):
        seconds = _iso(match[1], match[2], match[3])
        return None if seconds is None else _tagged("unix", seconds, match[4])
    return None


def _stamp(clock: Clock, seconds: float, text: str, node: str = "", tag: str = "") -> Stamp:
    return Stamp(clock=clock, seconds=seconds, node=node, tag=tag, text=text)


def _tagged(clock: Clock, seconds: float, rest: str) -> Stamp:
    """Stamp of `host kernel: text`, or of text alone (dmesg --time-format iso)."""
    match = _TAGGED.match(rest)
    if match is None or match[1].endswith(":") or len(match[1]) > HOST_CHARACTERS:
        return _stamp(clock, seconds, rest)
    return _stamp(clock, seconds, match[3], match[1], match[2])


def _bracketed(line: str) -> Stamp | None:
    if match := _BOOT.match(line):
        return _stamp("boot", float(match[1]), match[2])
    if match := _CTIME.match(line):
        seconds = _date(int(match[6]), match[1], match[2], match.group(3, 4, 5))
        return None if seconds is None else _stamp("unix", seconds, match[7])
    if match := _FABRIC.match(line):
        seconds = _date(int(match[3]), match[1], match[2], match.group(4, 5, 6))
        # the end of the bracket stays before the level, as in the whole line
        return None if seconds is None else _stamp("unix", seconds, f"] {match[7]}", tag="fabric")
    return None


def _date(
    year: int, month: str, day: str, clock: tuple[Any, ...] | list[Any], fraction: str | None = None
) -> float | None:
    hour, minute, second = (int(part) for part in clock)
    try:
        when = datetime(year, _MONTHS[month], int(day), hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    return when.timestamp() + (float(fraction) if fraction else 0.0)


def _iso(text: str, fraction: str, zone: str | None) -> float | None:
    zone = "+00:00" if zone in (None, "Z", "UTC") else zone
    try:
        when = datetime.fromisoformat(f"{text}{zone}")
    except ValueError:
        return None
    return when.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)


def _journal(line: str) -> Stamp | None:
    """Stamp of a line of `journalctl -o json`; odd messages are lists of bytes there."""
    try:
        data = codec.from_json(line, "journal", once=True)
    except InputError:
        return None
    if not isinstance(data, dict) or "MESSAGE" not in data:
        return None
    message = data["MESSAGE"]
    if isinstance(message, list):
        kept = bytes(b for b in message if isinstance(b, int) and 0 <= b < 256)
        message = kept.decode("utf-8", "replace")
    moment = str(data.get("__REALTIME_TIMESTAMP", data.get("_SOURCE_REALTIME_TIMESTAMP", "")))
    tag, node = (str(data.get(key, "")) for key in ("SYSLOG_IDENTIFIER", "_HOSTNAME"))
    node = node if len(node) <= HOST_CHARACTERS else ""
    if not moment.isdigit() or len(moment) > 17:
        return _stamp("none", 0.0, str(message), node, tag)
    return _stamp("unix", int(moment) / 1e6, str(message), node, tag)
