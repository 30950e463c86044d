"""Failures that the log names, each once per rank and node, and the cause of the next restart."""

from __future__ import annotations

from computeflow.files.limits import LOG_FAULTS
from computeflow.telemetry.logs.journal import Journal, LogState
from computeflow.telemetry.logs.line_events import Failure, LinePosition


class Faults:
    def __init__(self, journal: Journal) -> None:
        self.cause: tuple[Failure, LinePosition] | None = None
        """The first failure since the last step, or one that says how long ranks hung."""
        self.hung_seconds: float | None = None
        self._journal = journal
        self._reported: set[tuple[str, int | None, str]] = set()

    def take(self, event: Failure, now: LogState) -> None:
        if event.fault and (self.cause is None or event.waited_seconds is not None):
            self.cause = (event, now.place)
        if event.waited_seconds:
            self.hung_seconds = max(self.hung_seconds or 0.0, event.waited_seconds)
        rank = event.rank if event.rank is not None else now.place.rank
        node = event.node or now.place.node
        if self._is_new((event.what, rank, node)):
            self._journal.write(
                event.what, now.place, fault=event.fault, detail=event.detail, rank=rank, node=node
            )
        else:
            self._journal.left["repeated failures"] += 1

    def _is_new(self, key: tuple[str, int | None, str]) -> bool:
        is_new = key not in self._reported
        if len(self._reported) < LOG_FAULTS:
            self._reported.add(key)
        return is_new

    def survive(self) -> None:
        """Clear the cause: a step was done, so the failures before it did not stop the run."""
        self.cause = self.hung_seconds = None

    def forget(self) -> None:
        """After a restart, report the same failures again."""
        self._reported.clear()
