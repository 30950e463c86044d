"""Failures that the log names, each once by rank and node, and the one to which a restart is laid."""

from __future__ import annotations

from computeflow.telemetry.logs.events import Failure, Place
from computeflow.telemetry.logs.journal import Journal, Now

_MAX_SAID = 1 << 16


class Faults:
    def __init__(self, journal: Journal) -> None:
        self.cause: tuple[Failure, Place] | None = None
        """The first failure since the last step, or one that says how long ranks hung."""
        self.hung_seconds: float | None = None
        self._journal = journal
        self._said: set[tuple[str, int | None, str]] = set()

    def take(self, event: Failure, now: Now) -> None:
        if event.fault and (self.cause is None or event.waited_seconds is not None):
            self.cause = (event, now.place)
        if event.waited_seconds:
            self.hung_seconds = max(self.hung_seconds or 0.0, event.waited_seconds)
        rank = event.rank if event.rank is not None else now.place.rank
        node = event.node or now.place.node
        if self._is_news((event.what, rank, node)):
            self._journal.write(
                event.what, now.place, fault=event.fault, detail=event.detail, rank=rank, node=node
            )
        else:
            self._journal.left["failures said again"] += 1

    def _is_news(self, key: tuple[str, int | None, str]) -> bool:
        news = key not in self._said
        if len(self._said) < _MAX_SAID:
            self._said.add(key)
        return news

    def survive(self) -> None:
        """A step was done: the failures before it did not stop the run."""
        self.cause = self.hung_seconds = None

    def forget(self) -> None:
        """After a restart the same may be said as news."""
        self._said.clear()
