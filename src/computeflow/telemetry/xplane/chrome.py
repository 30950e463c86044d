"""A profile as JAX writes it for Chrome (`*.trace.json.gz`): `open_chrome` gives the same planes.

Its processes are planes and its threads lines; of an event's stats, those that have a text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.errors import InputError
from computeflow.telemetry.kineto.chunks import Reading, pieces
from computeflow.telemetry.xplane.names import known_plane
from computeflow.telemetry.xplane.planes import STATS, Event, Line, Plane


def open_chrome(path: Path) -> tuple[list[Plane], list[str]]:
    """Planes, and what of the file is left out."""
    texts: list[bytes] = []
    reading = Reading(path, raw=texts.append)
    processes: dict[Any, str] = {}
    threads: dict[Any, str] = {}
    events: defaultdict[Any, list[Event]] = defaultdict(list)
    strange = 0
    try:
        for _ in pieces(reading):
            for text in texts:
                for event in _events(text):
                    strange += not _taken(event, processes, threads, events)
            texts.clear()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    left_out = [f"the end of the file ({reading.cut_short})"] if reading.cut_short else []
    if strange + reading.unreadable:
        left_out.append(f"{strange + reading.unreadable:,} entries that are no events")
    planes = [
        Plane(
            name=name,
            lines=[
                Line(name=threads.get(key, ""), events=some)
                for key, some in events.items()
                if key[0] == process
            ],
        )
        for process, name in processes.items()
        if known_plane(name)
    ]
    return planes, left_out


def _events(text: bytes) -> Iterator[Mapping[str, Any]]:
    try:
        found = codec.from_json(b"[" + text + b"]", "events")
    except InputError:
        return
    yield from (event for event in found if isinstance(event, dict) and event)


def _taken(
    event: Mapping[str, Any], processes: dict[Any, str], threads: dict[Any, str],
    events: dict[Any, list[Event]],
) -> bool:  # fmt: skip
    """Into one of the tables; False where it is none that the format has."""
    arguments = event.get("args")
    stats = arguments if isinstance(arguments, dict) else {}
    key = str(event.get("pid")), str(event.get("tid"))
    phase, name = event.get("ph"), event.get("name")
    if phase == "M":
        if name == "process_name":
            processes[key[0]] = str(stats.get("name"))[:200]
        elif name == "thread_name":
            threads[key] = str(stats.get("name"))[:200]
        return True
    try:
        times = float(event["ts"]) * 1e3, float(event["dur"]) * 1e3
    except (KeyError, TypeError, ValueError):
        return False
    if phase != "X":
        return False
    kept = {name: value for name, value in stats.items() if name in STATS}
    events[key].append(Event(str(name), *times, kept))
    return True
