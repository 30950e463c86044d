"""The bounded list of what happened, in order of lines, and the current line as trackers see it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TypeVar

from computeflow.files.limits import LOG_LIST_ITEMS
from computeflow.telemetry.logs.line_events import LinePosition
from computeflow.telemetry.logs.log_timeline import LogTimeline
from computeflow.telemetry.source_reports import Event

_DETAIL = 200
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """The state of the log at a line."""

    place: LinePosition
    moment: float | None = None
    """The line's time on the timeline's clock, where it carries one."""
    last: int | None = None
    """The iteration logged last since the launch."""
    marks: int = 0
    """Launches and steps so far: equal at two lines if no step lies between them."""


class Journal:
    def __init__(self, timeline: LogTimeline) -> None:
        self.happenings: list[Event] = []
        self.left: Counter[str] = Counter()
        """Number of items beyond the limit, by kind."""
        self.dated = True
        """Whether all times so far have a year."""
        self._timeline = timeline

    def write(
        self,
        what: str,
        place: LinePosition,
        *,
        detail: str = "",
        fault: bool = False,
        rank: int | None = None,
        node: str = "",
        at: float | None = None,
    ) -> None:
        happening = Event(
            seconds=at if at is not None else self.unix(place),
            what=what,
            node=node or place.node,
            rank=rank if rank is not None else place.rank,
            detail=f"{place.where} {detail[:_DETAIL]}".strip(),
            fault=fault,
        )
        self.keep(self.happenings, happening, "events")

    def keep(self, kept: list[T], item: T, name: str) -> None:
        if len(kept) < LOG_LIST_ITEMS:
            kept.append(item)
        else:
            self.left[name] += 1

    def unix(self, place: LinePosition | None = None) -> float | None:
        """Unix time of a line, or the log's latest time."""
        if not self.dated:
            return None
        if place is not None and place.seconds is not None:
            return place.seconds
        return self._timeline.unix(max(self._timeline.cursor, self._timeline.seen))
