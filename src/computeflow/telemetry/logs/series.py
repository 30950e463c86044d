"""Logged steps and their times, kept as at most some thousand points: neighbours are merged when they
grow too many.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from computeflow.telemetry.logs.events import Step, finite
from computeflow.telemetry.logs.facts import Point, Stall
from computeflow.telemetry.logs.journal import Journal, Now
from computeflow.telemetry.logs.timeline import Timeline

_MAX_KEPT = 8_192
_MAX_SHOWN = 400
_MAX_SECONDS = 1e9
"""Of a step that can be meant."""


class StepTimes:
    def __init__(self, timeline: Timeline, journal: Journal) -> None:
        self.steps = 0
        self.points = 0
        self.stalls: list[Stall] = []
        self._timeline = timeline
        self._journal = journal
        self._seconds = 0.0
        self._timed = 0
        self._kept: list[Point] = []
        self._open_first = False

    def take(self, step: Step, now: Now, *, steps: int | None, again: float) -> float | None:
        """The seconds of a step, where known. `steps` None: not known yet, as many as to the next
        point; `again`: the share done before.
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

    def _add(self, step: Step, steps: int | None, seconds: float | None, at: float | None) -> None:
        if self._open_first and steps:
            self._close(steps)
        self._open_first = steps is None
        steps = steps or 1
        self.points += 1
        self._count(steps, seconds)
        loss = finite(step.loss)
        self._kept.append(
            Point(iteration=step.iteration, steps=steps, seconds=seconds, loss=loss, at=at)
        )
        if len(self._kept) >= _MAX_KEPT:
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
        """By step; of merged points where there are many."""
        timed = [(p.seconds, p.steps) for p in self._kept if p.seconds is not None]
        if not timed:
            return None
        values, weights = (np.array(column, float) for column in zip(*timed, strict=True))
        order = np.argsort(values, kind="stable")
        half = np.cumsum(weights[order]) - weights[order] / 2
        return float(np.interp(weights.sum() / 2, half, values[order]))

    def series(self) -> tuple[Point, ...]:
        kept = self._kept
        while len(kept) > _MAX_SHOWN:
            kept = _halved(kept)
        return tuple(kept)


def _halved(points: list[Point]) -> list[Point]:
    """Pairs taken together; not across a restart, unless there are restarts all over."""
    apart = 4 * sum(b.iteration < a.iteration for a, b in pairwise(points)) < len(points)
    merged: list[Point] = []
    skip = False
    for one, other in pairwise([*points, points[-1]]):
        if skip:
            skip = False
        elif other is one or (apart and other.iteration < one.iteration):
            merged.append(one)
        else:
            merged.append(_both(one, other))
            skip = True
    return merged


def _both(one: Point, other: Point) -> Point:
    steps = one.steps + other.steps
    seconds = None
    if one.seconds is not None and other.seconds is not None:
        seconds = (one.seconds * one.steps + other.seconds * other.steps) / steps
    loss = other.loss if other.loss is not None else one.loss
    return Point(iteration=other.iteration, steps=steps, seconds=seconds, loss=loss, at=other.at)
