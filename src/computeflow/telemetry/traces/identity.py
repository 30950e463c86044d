"""Which rank of which job a trace is of, on which device, and by which clock."""

from __future__ import annotations

import re

from computeflow.errors import InputError
from computeflow.telemetry.traces.measured import Options
from computeflow.telemetry.traces.trace import Trace

RANK_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"rank[-_]?(\d+)",
        r"worker[-_]?(\d+)",
        r"(?:^|[-_.])r(\d+)[-_.]",
        r"^(\d+)[-_.]",
    )
)
"""Looked for in a file's name, in this order, where the trace does not say its rank."""


def rank_of(trace: Trace, options: Options) -> tuple[int, str]:
    """From the trace, from the file's name, or assumed to be 0."""
    name = trace.path.name
    if options.rank_from is not None:
        return _asked_rank(name, options.rank_from), "file name"
    stated = _stated(trace, "rank")
    if stated is not None and 0 <= stated < 10**7:
        return stated, "trace"
    matches = (pattern.search(name) for pattern in RANK_PATTERNS)
    named = next((found[1] for found in matches if found and len(found[1]) < 8), None)
    return (0, "assumed") if named is None else (int(named), "file name")


def _asked_rank(name: str, pattern: str) -> int:
    found = re.search(pattern, name)
    number = found[1] or "" if found and found.groups() else ""
    if not number.isdecimal() or len(number) >= 8:
        raise InputError(f"{name}: --rank-from finds no rank in the name")
    return int(number)


def _stated(trace: Trace, key: str) -> int | None:
    info = trace.header.get("distributedInfo")
    value = info.get(key) if isinstance(info, dict) else None
    return value if isinstance(value, int) else None


def world_of(trace: Trace) -> int | None:
    world = _stated(trace, "world_size")
    return world if world is not None and 0 < world < 10**7 else None


def device_name(trace: Trace) -> str:
    known = trace.header.get("deviceProperties")
    first = known[0] if isinstance(known, list) and known else None
    return plain_text(first.get("name")) if isinstance(first, dict) else ""


def plain_text(value: object) -> str:
    return str(value) if isinstance(value, str | int) else ""


def clock_of(trace: Trace) -> int:
    """Nanoseconds to add, so that times are those of the rank's own clock."""
    base = trace.header.get("baseTimeNanoseconds")
    whole = base if isinstance(base, int) and 0 <= base < 4 * 10**18 else 0
    return whole + round(trace.base) * 1000  # whole microseconds: exact
