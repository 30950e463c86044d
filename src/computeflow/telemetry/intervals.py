"""Sets of time as disjoint, sorted intervals: union, difference, intersection, measure.

Times are whole nanoseconds, so sums are exact and a ledger closes to the last digit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
AT_ONCE = 1 << 15
"""Intervals processed at once, so that the work on a long set stays in a processor's cache."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """A set of disjoint intervals in order of time; make one with `union`."""

    start: Times
    end: Times

    def __len__(self) -> int:
        return len(self.start)

    @property
    def total(self) -> int:
        return int((self.end - self.start).sum())

    def before(self, times: Times) -> Times:
        """How much of the set lies before each of these times."""
        if not len(self):
            return np.zeros(len(times), np.int64)
        lengths = np.concatenate([[0], np.cumsum(self.end - self.start)])
        at = np.searchsorted(self.start, times, side="right")
        inside = np.where(at > 0, np.maximum(self.end[at - 1] - times, 0), 0)
        return np.asarray(lengths[at] - inside)

    def within(self, start: Times, end: Times) -> Times:
        """How much of the set lies within each of these intervals, which may overlap."""
        return self.before(end) - self.before(start)

    def contains(self, times: Times) -> NDArray[np.bool_]:
        """Which of these times lie in the set; the end of an interval lies outside."""
        if not len(self):
            return np.zeros(len(times), bool)
        at = np.searchsorted(self.start, times, side="right") - 1
        return np.asarray((at >= 0) & (times < self.end[at]))

    def minus(self, other: Intervals) -> Intervals:
        if not len(other):
            return self
        if len(self) == 1:  # the gaps between the others
            other = other.clipped(int(self.start[0]), int(self.end[0]))
            return union(
                np.concatenate([self.start, other.end]), np.concatenate([other.start, self.end])
            )
        return _parts(self, other, in_both=False)

    def both(self, other: Intervals) -> Intervals:
        return _parts(self, other, in_both=True) if len(other) else EMPTY

    def either(self, other: Intervals) -> Intervals:
        if not len(self) or not len(other):
            return self if len(self) else other
        return union(
            np.concatenate([self.start, other.start]), np.concatenate([self.end, other.end])
        )

    def clipped(self, start: int, end: int) -> Intervals:
        low, high = np.maximum(self.start, start), np.minimum(self.end, end)
        keep = high > low
        return Intervals(low[keep], high[keep])


EMPTY = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))


def union(start: Times, end: Times) -> Intervals:
    """The union of intervals that may overlap, in any order; empty and reversed ones are ignored."""
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if not len(start):
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    last = np.concatenate([np.flatnonzero(first)[1:] - 1, [len(start) - 1]])
    return Intervals(start[first], reach[last])


def between(start: int, end: int) -> Intervals:
    if end <= start:
        return EMPTY
    return Intervals(np.array([start], np.int64), np.array([end], np.int64))


def _parts(left: Intervals, right: Intervals, *, in_both: bool) -> Intervals:
    """The part of `left` that is in `right` too, or that is not, computed in batches of `AT_ONCE`."""
    batches = [EMPTY]
    for first in range(0, len(left), AT_ONCE):
        batch = Intervals(left.start[first : first + AT_ONCE], left.end[first : first + AT_ONCE])
        low = np.searchsorted(right.end, batch.start[0], side="right")
        high = np.searchsorted(right.start, batch.end[-1], side="left")
        near = Intervals(right.start[low:high], right.end[low:high])
        batches.append(_swept(batch, near, in_both=in_both))
    return Intervals(
        np.concatenate([batch.start for batch in batches]),
        np.concatenate([batch.end for batch in batches]),
    )


def _swept(left: Intervals, right: Intervals, *, in_both: bool) -> Intervals:
    """Compare two sets by a sweep over the boundaries of both."""
    points = np.concatenate([left.start, left.end, right.start, right.end])
    order = np.argsort(points, kind="stable")  # four runs, which it merges
    points = points[order]
    sizes = [len(left), len(left), len(right), len(right)]
    inside = np.cumsum(np.repeat(np.array([1, -1, 2, -2], np.int8), sizes)[order], dtype=np.int8)
    last = points[1:] != points[:-1]  # the last of equal points
    chosen = inside[:-1][last] == (3 if in_both else 1)
    return union(points[:-1][last][chosen], points[1:][last][chosen])
