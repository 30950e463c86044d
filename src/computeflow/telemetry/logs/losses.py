"""Losses and their spikes, by medians of a window of those before, so that no spike hides another.

Losses fall as training goes on: the level is the median of the last few, and the spread the MAD of
the changes from one to the next, which knows no trend.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import pairwise
from statistics import median

from computeflow.telemetry.logs.facts import Spike

_WINDOW = 64
_FEW = 16
_LEVEL = 9
_REFRESH = 8
"""Losses until a full window is looked at again."""
_SIGMAS = 8.0
_SIGMA = 1.4826
"""Of a normal distribution, in MADs."""
_SHARE = 0.2
"""A spike is at least this much of the usual loss above it."""
_MOST = 1_000


class Losses:
    def __init__(self) -> None:
        self.first: float | None = None
        self.last: float | None = None
        self.spikes: list[Spike] = []
        self.more = 0
        self._window: deque[float] = deque(maxlen=_WINDOW)
        self._high = 0
        self._known = (float("inf"), 0.0)
        self._age = 0

    def add(self, iteration: int, loss: float, where: str) -> Spike | None:
        """The spike that starts here, if one does."""
        self.first = loss if self.first is None else self.first
        self.last = loss
        limit, usual = self._limit()
        if loss <= limit:
            self._window.append(loss)
            self._high = 0
            return None
        self._high += 1
        if self._high > 1:
            self._goes_on()
            return None
        spike = Spike(iteration=iteration, loss=loss, usual=usual, points=1, where=where)
        if len(self.spikes) < _MOST:
            self.spikes.append(spike)
        else:
            self.more += 1
        return spike

    def forget(self) -> None:
        """A new launch may start from other weights."""
        self._window.clear()
        self._high = 0

    def _goes_on(self) -> None:
        last = self.spikes[-1]
        self.spikes[-1] = replace(last, points=max(last.points, self._high))
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
