"""What happened, in the order of the lines and bounded; and the line at hand, as trackers see it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TypeVar

from computeflow.telemetry.logs.events import Place
from computeflow.telemetry.logs.timeline import Timeline
from computeflow.telemetry.observed import Happening

MAX_KEPT = 1_000
"""Of each list; more are counted."""
_DETAIL = 200
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """Where the log stands at a line."""

    place: Place
    moment: float | None = None
    """The line's time on the timeline's clock, where it carries one."""
    last: int | None = None
    """The iteration logged last since the launch."""
    marks: int = 0
    """Launches and steps so far: the same at two lines if no step lies between them."""


class Journal:
    def __init__(self, timeline: Timeline) -> None:
        self.happenings: list[Happening] = []
        self.left: Counter[str] = Counter()
        """Items beyond what is kept, by what they are."""
        self.dated = True
        """All times so far have a year."""
        self._timeline = timeline

    def write(
        self,
        what: str,
        place: Place,
        *,
        detail: str = "",
        fault: bool = False,
        rank: int | None = None,
        node: str = "",
        at: float | None = None,
    ) -> None:
        happening = Happening(
            seconds=at if at is not None else self.unix(place),
            what=what,
            node=node or place.node,
            rank=rank if rank is not None else place.rank,
            detail=f"{place.where} {detail[:_DETAIL]}".strip(),
            fault=fault,
        )
        self.keep(self.happenings, happening, "happenings")

    def keep(self, kept: list[T], item: T, name: str) -> None:
        if len(kept) < MAX_KEPT:
            kept.append(item)
        else:
            self.left[name] += 1

    def unix(self, place: Place | None = None) -> float | None:
        """When a line was written, or the time that the log has come to."""
        if not self.dated:
            return None
        if place is not None and place.seconds is not None:
            return place.seconds
        return self._timeline.unix(max(self._timeline.cursor, self._timeline.seen))
