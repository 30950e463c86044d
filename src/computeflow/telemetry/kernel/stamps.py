"""When and where a line of a log was written: `stamp_of`.

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
"""A year in which every date is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    clock: Clock
    seconds: float
    """By that clock; of a date without a year, as if it were of 2000."""
    node: str
    tag: str
    """Who wrote it: kernel, systemd; "" where the form does not say."""
    text: str


def stamp_of(line: str) -> Stamp | None:
    """None where the line has no stamp: it goes on from the one before."""
    first = line[:1]
    if first == "{":
        return _journal(line)
    if first.isdigit() and (found := _KMSG.match(line)):
        return _made("boot", int(found[1]) / 1e6, found[2])
    if first.islower() or first == "<":
        line = line[level.end() :] if (level := _LEVEL.match(line)) else line
        first = line[:1]
    if first == "[":
        return _bracketed(line)
    if first in "JFMASONDTW" and (found := _SYSLOG.match(line)):
        month, day, *clock, fraction = found.groups()[:6]
        seconds = _date(_LEAP, month, day, clock, fraction)
        return None if seconds is None else _tagged("no year", seconds, found[7])
    if found := _ISO.match(line):
        seconds = _iso(found[1], found[2], found[3])
        return None if seconds is None else _tagged("unix", seconds, found[4])
    return None


def _made(clock: Clock, seconds: float, text: str, node: str = "", tag: str = "") -> Stamp:
    return Stamp(clock=clock, seconds=seconds, node=node, tag=tag, text=text)


def _tagged(clock: Clock, seconds: float, rest: str) -> Stamp:
    """`host kernel: text`, or text alone (dmesg --time-format iso)."""
    found = _TAGGED.match(rest)
    if found is None or found[1].endswith(":") or len(found[1]) > HOST_CHARACTERS:
        return _made(clock, seconds, rest)
    return _made(clock, seconds, found[3], found[1], found[2])


def _bracketed(line: str) -> Stamp | None:
    if found := _BOOT.match(line):
        return _made("boot", float(found[1]), found[2])
    if found := _CTIME.match(line):
        seconds = _date(int(found[6]), found[1], found[2], found.group(3, 4, 5))
        return None if seconds is None else _made("unix", seconds, found[7])
    if found := _FABRIC.match(line):
        seconds = _date(int(found[3]), found[1], found[2], found.group(4, 5, 6))
        # the end of the bracket stays before the level, as in the whole line
        return None if seconds is None else _made("unix", seconds, f"] {found[7]}", tag="fabric")
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
    """A line of `journalctl -o json`; a message with odd characters is a list of its bytes."""
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
        return _made("none", 0.0, str(message), node, tag)
    return _made("unix", int(moment) / 1e6, str(message), node, tag)
