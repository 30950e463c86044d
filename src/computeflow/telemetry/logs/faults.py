"""Failures that the log names, each once per rank and node, and the cause of the next restart."""

from __future__ import annotations

from computeflow.files.limits import LOG_FAULTS
from computeflow.telemetry.logs.journal import Journal, LogState
from computeflow.telemetry.logs.line_events import Failure, FirstFailure, LinePosition
from computeflow.telemetry.logs.log_facts import RootCause


class Faults:
    def __init__(self, journal: Journal) -> None:
        self.cause: tuple[Failure, LinePosition] | None = None
        """The first failure since the last step, or one that says how long ranks hung."""
        self.hung_seconds: float | None = None
        self.root_causes: list[RootCause] = []
        self._journal = journal
        self._reported: set[tuple[str, int | None, str]] = set()

    def take(self, event: Failure, now: LogState) -> None:
        if event.fault and (self.cause is None or event.waited_seconds is not None or event.first):
            self.cause = (event, now.place)
        if event.first is not None:
            self._keep_first(event, event.first, now)
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

    def _keep_first(self, event: Failure, first: FirstFailure, now: LogState) -> None:
        cause = RootCause(
            rank=event.rank,
            node=event.node,
            local_rank=first.local_rank,
            exit_code=first.exit_code,
            signal=first.signal,
            error=first.error,
            error_file=first.error_file,
            after=now.last,
            where=now.place.where,
        )
        self._journal.keep(self.root_causes, cause, "root causes")

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
