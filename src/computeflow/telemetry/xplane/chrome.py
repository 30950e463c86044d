"""Profiles in JAX's Chrome format (`*.trace.json.gz`): `open_chrome` gives the same planes.

Its processes are planes and its threads lines; an event's stats are its arguments.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.errors import InputError
from computeflow.telemetry.kineto.chunks import FileReading, pieces
from computeflow.telemetry.xplane.plane_names import known_plane
from computeflow.telemetry.xplane.planes import STATS, Plane, PlaneEvent, PlaneLine


def open_chrome(path: Path) -> tuple[list[Plane], list[str]]:
    """The planes of a file, and notes on what was left out."""
    texts: list[bytes] = []
    reading = FileReading(path, raw=texts.append)
    collected = _Collected()
    for _ in pieces(reading):
        for text in texts:
            collected.add(text)
        texts.clear()
    left_out = [f"the end of the file ({reading.cut_short})"] if reading.cut_short else []
    if invalid := collected.strange + reading.unreadable:
        left_out.append(f"{invalid:,} entries that are no events")
    return collected.planes(), left_out


class _Collected:
    """Events by process and thread, with the names of these."""

    def __init__(self) -> None:
        self.processes: dict[str, str] = {}
        self.threads: dict[tuple[str, str], str] = {}
        self.events: defaultdict[tuple[str, str], list[PlaneEvent]] = defaultdict(list)
        self.strange = 0

    def add(self, text: bytes) -> None:
        """Add some events, with commas between them."""
        try:
            events = codec.from_json(b"[" + text + b"]", "events")
        except InputError:
            return  # already counted while reading
        for event in events:
            if isinstance(event, dict) and event:
                self._add(event)

    def _add(self, event: Mapping[str, Any]) -> None:
        arguments = event.get("args")
        stats = arguments if isinstance(arguments, dict) else {}
        key = str(event.get("pid")), str(event.get("tid"))
        name = str(event.get("name"))
        if event.get("ph") == "M":
            if name == "process_name":
                self.processes[key[0]] = str(stats.get("name"))[:200]
            elif name == "thread_name":
                self.threads[key] = str(stats.get("name"))[:200]
            return
        try:
            times = float(event["ts"]) * 1e3, float(event["dur"]) * 1e3
        except (KeyError, OverflowError, TypeError, ValueError):
            times = (math.nan, math.nan)
        if not all(map(math.isfinite, times)):
            self.strange += 1
            return
        kept = {name: value for name, value in stats.items() if name in STATS}
        self.events[key].append(PlaneEvent(name, *times, kept))

    def planes(self) -> list[Plane]:
        lines: defaultdict[str, list[PlaneLine]] = defaultdict(list)
        for key, events in self.events.items():
            lines[key[0]].append(PlaneLine(name=self.threads.get(key, ""), events=events))
        known = {key: name for key, name in self.processes.items() if known_plane(name)}
        return [Plane(name=name, lines=lines[key]) for key, name in known.items()]
