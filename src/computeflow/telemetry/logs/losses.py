"""Losses and their spikes, against medians of a window of earlier losses, which spikes do not move.

Losses fall as training goes on: the level is the median of the last few, and the spread the MAD of
the changes from one to the next, which ignores the trend.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from itertools import pairwise
from statistics import median

from computeflow.files.limits import LOG_LIST_ITEMS
from computeflow.telemetry.logs.journal import Journal, LogState
from computeflow.telemetry.logs.line_events import StepLine
from computeflow.telemetry.logs.log_facts import Spike

_WINDOW = 64
_FEW = 16
_LEVEL = 9
_REFRESH = 8
"""Losses between two computations of a full window's medians."""
_SIGMAS = 8.0
_SIGMA = 1.4826
"""Standard deviation of a normal distribution, in MADs."""
_SHARE = 0.2
"""A spike exceeds the usual loss by at least this share of it."""


class Losses:
    def __init__(self, journal: Journal) -> None:
        self.first: float | None = None
        self.last: float | None = None
        self.nans = self.skipped = 0
        self._journal = journal
        self._spikes: list[Spike] = []
        self._window: deque[float] = deque(maxlen=_WINDOW)
        self._high = 0
        self._known = (float("inf"), 0.0)
        self._age = 0

    def take(self, step: StepLine, now: LogState) -> None:
        """Take a step's loss; one without an iteration belongs to the last step."""
        iteration = step.iteration if step.iteration >= 0 else (now.last or 0)
        bad = step.loss is not None and not math.isfinite(step.loss)
        if step.nans > 0 or bad:
            self.nans += max(step.nans, 1)
            self._journal.write("NaN loss", now.place, fault=True, detail=f"iteration {iteration}")
        if step.skipped:
            self.skipped += step.skipped
            detail = f"{step.skipped} up to iteration {iteration}"
            self._journal.write("skipped iterations", now.place, detail=detail)
        if step.loss is not None and not bad:
            self._add(iteration, step.loss, now)

    def _add(self, iteration: int, loss: float, now: LogState) -> None:
        self.first = loss if self.first is None else self.first
        self.last = loss
        limit, usual = self._limit()
        if loss <= limit:
            self._window.append(loss)
            self._high = 0
            return
        self._high += 1
        if self._high > 1:
            self._extend_spike()
            return
        if len(self._spikes) < LOG_LIST_ITEMS:
            spike = Spike(
                iteration=iteration, loss=loss, usual=usual, points=1, where=now.place.where
            )
            self._spikes.append(spike)
        detail = f"iteration {iteration}: {loss:.4g}, usually {usual:.4g}"
        self._journal.write("loss spike", now.place, detail=detail)

    def facts(self) -> tuple[Spike, ...]:
        return tuple(self._spikes)

    def forget(self) -> None:
        """Drop the window: a new launch may start from other weights."""
        self._window.clear()
        self._high = 0

    def _extend_spike(self) -> None:
        last = self._spikes[-1]
        self._spikes[-1] = replace(last, points=max(last.points, self._high))
        if self._high >= _WINDOW:  # no spike: the loss stays there
            self._window.clear()
            self._high = 0

    def _limit(self) -> tuple[float, float]:
        if len(self._window) < _FEW:
            return float("inf"), 0.0
        self._age = (self._age + 1) % _REFRESH
        if self._age != 1 and len(self._window) == _WINDOW:
            return self._known
        usual = median(list(self._window)[-_LEVEL:])
        changes = [after - before for before, after in pairwise(self._window)]
        middle = median(changes)
        spread = _SIGMA * median(abs(change - middle) for change in changes)
        self._known = (usual + max(_SIGMAS * spread, _SHARE * abs(usual)), usual)
        return self._known
