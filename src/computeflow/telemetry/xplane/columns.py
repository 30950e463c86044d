"""Rows of events, grown as numbers: `Rows`; and names by number: `Names`."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.traces.trace import Ints
from computeflow.telemetry.xplane.planes import Event

_LATEST = 2.0**61
MOST_EVENTS = 20_000_000


class Names(dict[str, int]):
    def __missing__(self, name: str) -> int:
        self[name] = number = len(self)
        return number


class Rows:
    """Integers, `width` in a row; the first two are start and end."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._numbers = array("q")

    def add(self, *row: int) -> None:
        self._numbers.extend(row)

    def __len__(self) -> int:
        return len(self._numbers) // self.width

    def table(self) -> Ints:
        """In order of start, the longest first."""
        rows = np.array(self._numbers, np.int64).reshape(-1, self.width)
        return np.asarray(rows[np.lexsort((-rows[:, 1], rows[:, 0]))])


def timed(event: Event) -> tuple[int, int] | None:
    """Start and end in whole nanoseconds; None where they are none."""
    start, length = event.start_ns, event.duration_ns
    if not (0 <= start < _LATEST and 0 <= length < _LATEST):
        return None
    begin = round(start)
    return begin, begin + round(length)


def leaves(table: Ints) -> NDArray[np.bool_]:
    """Those of one line that hold no other: of a loop, its parts and not the loop."""
    leaf = np.ones(len(table), bool)
    leaf[:-1] = ~((table[1:, 0] < table[:-1, 1]) & (table[1:, 1] <= table[:-1, 1]))
    return leaf


def whole_number(value: Any, otherwise: int = -1) -> int:
    """Stats come as integers and as text."""
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return found if -(2**62) < found < 2**62 else otherwise
