"""Logged steps, kept as at most some thousand points: neighbours are merged when they grow too many."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from computeflow.telemetry.logs.facts import Point

_MOST = 8_192
_TOLD = 400


class Series:
    def __init__(self) -> None:
        self.steps = 0
        self.points = 0
        self._seconds = 0.0
        self._timed = 0
        self._kept: list[Point] = []
        self._open_first = False

    def add(
        self,
        iteration: int,
        steps: int | None,
        seconds: float | None,
        loss: float | None,
        at: float | None,
    ) -> None:
        """`steps` None: not known yet; it is as many as to the next point."""
        if self._open_first and steps:
            self._close(steps)
        self._open_first = steps is None
        steps = steps or 1
        self.points += 1
        self._count(steps, seconds)
        point = Point(iteration=iteration, steps=steps, seconds=seconds, loss=loss, at=at)
        self._kept.append(point)
        if len(self._kept) >= _MOST:
            self._kept = _halved(self._kept)

    def _close(self, steps: int) -> None:
        last = self._kept[-1]
        self._count(steps - 1, last.seconds)
        self._kept[-1] = Point(iteration=last.iteration, steps=steps, seconds=last.seconds,
                               loss=last.loss, at=last.at)  # fmt: skip

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

    def told(self) -> tuple[Point, ...]:
        kept = self._kept
        while len(kept) > _TOLD:
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
