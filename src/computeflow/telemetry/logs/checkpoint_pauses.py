"""Pauses between steps: checkpoints and evaluations, and how long they took."""

from __future__ import annotations

from dataclasses import dataclass, replace

from computeflow.telemetry.logs.journal import Journal, LogState
from computeflow.telemetry.logs.line_events import Checkpoint, Evaluation, finite
from computeflow.telemetry.logs.log_facts import LoggedEvaluation, Save
from computeflow.telemetry.logs.log_timeline import LogTimeline


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A pause that was announced and has not ended."""

    iteration: int | None
    moment: float | None
    marks: int


def _took(stated: float | None, begun: _Begun | None, now: LogState) -> float | None:
    """Seconds as stated, or between start and end; None where a time is missing or steps went on."""
    if stated is not None or begun is None or begun.marks != now.marks:
        return stated
    if begun.moment is None or now.moment is None:
        return None
    return max(0.0, now.moment - begun.moment)


class Saves:
    def __init__(self, timeline: LogTimeline, journal: Journal) -> None:
        self._timeline = timeline
        self._journal = journal
        self._begun: _Begun | None = None
        self._saves: list[Save] = []

    def take(self, event: Checkpoint, now: LogState) -> None:
        if event.phase == "saving":
            iteration = _first_known(event.iteration, now.last)
            self._begun = _Begun(iteration=iteration, moment=now.moment, marks=now.marks)
            self._timeline.explain("checkpoint", iteration, None)
            self._add(iteration, None, now)
        elif event.phase == "saved":
            self._end(event, now)

    def _end(self, event: Checkpoint, now: LogState) -> None:
        begun, self._begun = self._begun, None
        seconds = _took(event.seconds, begun, now)
        iteration = _first_known(event.iteration, begun.iteration if begun else None, now.last)
        if event.blocking and (begun is None or begun.marks == now.marks):
            self._timeline.explain("checkpoint", iteration, seconds)
        if self._saves and self._saves[-1].iteration == iteration:
            if seconds is not None:
                self._saves[-1] = replace(self._saves[-1], seconds=seconds)
        else:
            self._add(iteration, seconds, now)

    def time_last(self, seconds: float) -> None:
        """Set how long the last save took, from a timer printed after it."""
        if self._saves:
            last = self._saves[-1]
            self._saves[-1] = replace(last, seconds=seconds)
            self._timeline.explain("checkpoint", last.iteration, seconds)

    def _add(self, iteration: int | None, seconds: float | None, now: LogState) -> None:
        if self._saves and iteration is not None and self._saves[-1].iteration == iteration:
            return  # another rank says it too
        at, where = self._journal.unix(now.place), now.place.where
        save = Save(iteration=iteration, seconds=seconds, at=at, where=where)
        self._journal.keep(self._saves, save, "checkpoints")
        self._journal.write("checkpoint", now.place, detail=iteration_text(iteration))

    def forget(self) -> None:
        self._begun = None

    def is_saving(self, marks: int) -> bool:
        """Whether a save has begun and no step has followed it."""
        return self._begun is not None and self._begun.marks == marks

    def facts(self) -> tuple[Save, ...]:
        return tuple(self._saves)


class Evaluations:
    def __init__(self, timeline: LogTimeline, journal: Journal) -> None:
        self.seconds = 0.0
        """Seconds of all evaluations, as far as known."""
        self._timeline = timeline
        self._journal = journal
        self._begun: _Begun | None = None
        self._scores: list[LoggedEvaluation] = []

    def take(self, event: Evaluation, now: LogState, *, running: bool) -> None:
        """Take an evaluation; it counts only if `running`, that is, if training has started."""
        if event.phase == "start":
            self._begun = _Begun(iteration=None, moment=now.moment, marks=now.marks)
            self._timeline.explain("evaluation", now.marks, None)
            return
        begun, self._begun = self._begun, None
        if not running:
            return
        seconds = _took(event.seconds, begun, now)
        self._timeline.explain("evaluation", now.marks, seconds)
        self.seconds += seconds or 0.0
        self._add(event, seconds, now)

    def _add(self, event: Evaluation, seconds: float | None, now: LogState) -> None:
        iteration = _first_known(event.iteration, now.last)
        last = self._scores[-1] if self._scores else None
        if last and last.iteration == iteration:  # a start, an end and a score are one
            self._scores[-1] = replace(
                last,
                seconds=seconds if last.seconds is None else last.seconds,
                score=last.score if finite(event.loss) is None else event.loss,
            )
            return
        score = LoggedEvaluation(
            iteration=iteration,
            seconds=seconds,
            score=finite(event.loss),
            at=self._journal.unix(now.place),
            where=now.place.where,
        )
        self._journal.keep(self._scores, score, "evaluations")

    def forget(self) -> None:
        self._begun = None

    def facts(self) -> tuple[LoggedEvaluation, ...]:
        return tuple(self._scores)


def iteration_text(iteration: int | None) -> str:
    return "" if iteration is None else f"iteration {iteration}"


def _first_known(*iterations: int | None) -> int | None:
    return next((iteration for iteration in iterations if iteration is not None), None)
