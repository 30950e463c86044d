"""Identity of a trace: its rank, job size, device and clock."""

from __future__ import annotations

import re

from computeflow.errors import InputError
from computeflow.telemetry.traces.rank_measurements import TraceOptions
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
"""Patterns tried in this order on a file's name, where the trace does not state its rank."""


def rank_of(trace: Trace, options: TraceOptions) -> tuple[int, str]:
    """The rank and how it is known: from the trace, from the file's name, or assumed to be 0."""
    name = trace.path.name
    if options.rank_from is not None:
        return _rank_in_name(name, options.rank_from), "file name"
    stated = _stated(trace, "rank")
    if stated is not None and 0 <= stated < 10**7:
        return stated, "trace"
    matches = (pattern.search(name) for pattern in RANK_PATTERNS)
    named = next((match[1] for match in matches if match and len(match[1]) < 8), None)
    return (0, "assumed") if named is None else (int(named), "file name")


def _rank_in_name(name: str, pattern: str) -> int:
    match = re.search(pattern, name)
    number = match[1] or "" if match and match.groups() else ""
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


_MAX_GROUPS = 4096
_MAX_MEMBERS = 1 << 18
"""Most ranks of all groups together that are kept."""


def process_groups(trace: Trace) -> tuple[tuple[int, ...], ...]:
    """Ranks of each process group that the header states, in its order."""
    info = trace.header.get("distributedInfo")
    config = info.get("pg_config") if isinstance(info, dict) else None
    groups: dict[tuple[int, ...], None] = {}
    room = _MAX_MEMBERS
    for group in (config if isinstance(config, list) else [])[:_MAX_GROUPS]:
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if not isinstance(ranks, list) or not 1 < len(ranks) <= room:
            continue
        if all(isinstance(rank, int) and 0 <= rank < 10**7 for rank in ranks):
            groups[tuple(ranks)] = None
            room -= len(ranks)
    return tuple(groups)


def device_name(trace: Trace) -> str:
    known = trace.header.get("deviceProperties")
    first = known[0] if isinstance(known, list) and known else None
    return plain_text(first.get("name")) if isinstance(first, dict) else ""


def plain_text(value: object) -> str:
    return str(value) if isinstance(value, str | int) else ""


def clock_of(trace: Trace) -> int:
    """Nanoseconds to add to the trace's times to get those of the rank's own clock."""
    base = trace.header.get("baseTimeNanoseconds")
    whole = base if isinstance(base, int) and 0 <= base < 4 * 10**18 else 0
    return whole + round(trace.base) * 1000  # whole microseconds: exact
