"""Logged steps and their times, kept as a few thousand points at most; neighbours are merged."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from computeflow.files.limits import LOG_STEPS
from computeflow.telemetry.logs.journal import Journal, LogState
from computeflow.telemetry.logs.line_events import StepLine, finite
from computeflow.telemetry.logs.log_facts import Stall, StepPoint
from computeflow.telemetry.logs.log_timeline import LogTimeline

_MAX_SHOWN = 400
_MAX_SECONDS = 1e9
"""Longest step time that is believed."""
_RESUMED = 10
"""A bar whose first state is this many times the next interval did not begin at 0."""


class LoggedStepTimes:
    def __init__(self, timeline: LogTimeline, journal: Journal) -> None:
        self.steps = 0
        self.points = 0
        self.stalls: list[Stall] = []
        self._timeline = timeline
        self._journal = journal
        self._seconds = 0.0
        self._timed = 0
        self._kept: list[StepPoint] = []
        self._open_first = False

    def take(
        self, step: StepLine, now: LogState, *, steps: int | None, again: float
    ) -> float | None:
        """The seconds of a step, where known. `steps` is None if unknown until the next point;
        `again` is the share of steps done before.
        """
        stated = step.seconds
        if stated is not None and not 0 <= stated < _MAX_SECONDS:
            stated = None
        timed = self._timeline.step(steps=steps, seconds=stated, moment=now.moment, again=again)
        at = self._journal.unix()
        seconds, stalled = timed or (None, 0.0)
        self._add(step, steps, seconds, at)
        if stalled:
            iteration = step.iteration
            stall = Stall(
                iteration=iteration,
                seconds=stalled,
                usual_seconds=seconds,
                at=at,
                where=now.place.where,
            )
            self._journal.keep(self.stalls, stall, "stalls")
            detail = f"{stalled:.1f} s before iteration {iteration}"
            self._journal.write("stall", now.place, fault=True, detail=detail, at=at)
        return seconds

    def _add(
        self, step: StepLine, steps: int | None, seconds: float | None, at: float | None
    ) -> None:
        if self._open_first and steps:
            self._close(_first_steps(self._kept[-1].iteration, steps, step))
        self._open_first = steps is None
        steps = steps or 1
        self.points += 1
        self._count(steps, seconds)
        loss = finite(step.loss)
        self._kept.append(
            StepPoint(iteration=step.iteration, steps=steps, seconds=seconds, loss=loss, at=at)
        )
        if len(self._kept) >= LOG_STEPS:
            self._kept = _halved(self._kept)

    def _close(self, steps: int) -> None:
        last = self._kept[-1]
        self._count(steps - 1, last.seconds)
        self._kept[-1] = replace(last, steps=steps)

    def _count(self, steps: int, seconds: float | None) -> None:
        self.steps += steps
        if seconds is not None:
            self._seconds += steps * seconds
            self._timed += steps

    @property
    def mean_seconds(self) -> float | None:
        return self._seconds / self._timed if self._timed else None

    @property
    def median_seconds(self) -> float | None:
        """Median over steps; over merged points where there are many."""
        timed = [(p.seconds, p.steps) for p in self._kept if p.seconds is not None]
        if not timed:
            return None
        values, weights = (np.array(column, float) for column in zip(*timed, strict=True))
        order = np.argsort(values, kind="stable")
        half = np.cumsum(weights[order]) - weights[order] / 2
        return float(np.interp(weights.sum() / 2, half, values[order]))

    def series(self) -> tuple[StepPoint, ...]:
        kept = self._kept
        while len(kept) > _MAX_SHOWN:
            kept = _halved(kept)
        return tuple(kept)


def _first_steps(iteration: int, interval: int, step: StepLine) -> int:
    """Steps up to the first logged one: as many as up to the next where the run was resumed. Lines
    come in equal intervals and may count from 0; a bar is drawn by time and counts from 1, and so is
    a count of a total whose first is no multiple of the interval.
    """
    if step.bar or (step.from_one and iteration % interval):
        return max(iteration, 1) if iteration < _RESUMED * interval else interval
    return min(interval, iteration + (not step.from_one) or interval)


def _halved(points: list[StepPoint]) -> list[StepPoint]:
    """Points merged in pairs, not across a restart unless restarts are everywhere."""
    apart = 4 * sum(b.iteration < a.iteration for a, b in pairwise(points)) < len(points)
    merged: list[StepPoint] = []
    skip = False
    for first, second in pairwise([*points, points[-1]]):
        if skip:
            skip = False
        elif second is first or (apart and second.iteration < first.iteration):
            merged.append(first)
        else:
            merged.append(_pair(first, second))
            skip = True
    return merged


def _pair(first: StepPoint, second: StepPoint) -> StepPoint:
    steps = first.steps + second.steps
    seconds = None
    if first.seconds is not None and second.seconds is not None:
        seconds = (first.seconds * first.steps + second.seconds * second.steps) / steps
    loss = second.loss if second.loss is not None else first.loss
    return StepPoint(
        iteration=second.iteration, steps=steps, seconds=seconds, loss=loss, at=second.at
    )
