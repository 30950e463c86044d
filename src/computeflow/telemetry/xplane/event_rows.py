"""Growing tables of events: `EventRows`; and numbered names: `NameNumbers`."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.traces.trace import Ints
from computeflow.telemetry.xplane.planes import PlaneEvent

_LATEST = 2.0**61


class NameNumbers(dict[str, int]):
    def __missing__(self, name: str) -> int:
        self[name] = number = len(self)
        return number


class EventRows:
    """A growing table of integers, `width` to a row; the first two are start and end."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._numbers = array("q")

    def add(self, *row: int) -> None:
        self._numbers.extend(row)

    def __len__(self) -> int:
        return len(self._numbers) // self.width

    def table(self) -> Ints:
        """The rows in order of start, the longest first."""
        rows = np.array(self._numbers, np.int64).reshape(-1, self.width)
        return np.asarray(rows[np.lexsort((-rows[:, 1], rows[:, 0]))])


def event_nanoseconds(event: PlaneEvent) -> tuple[int, int] | None:
    """Start and end in whole nanoseconds; None where they are invalid."""
    start, length = event.start_ns, event.duration_ns
    if not (0 <= start < _LATEST and 0 <= length < _LATEST):
        return None
    begin = round(start)
    return begin, begin + round(length)


def leaves(table: Ints) -> NDArray[np.bool_]:
    """Events of one line that contain no other: the parts of a loop, not the loop."""
    leaf = np.ones(len(table), bool)
    leaf[:-1] = ~((table[1:, 0] < table[:-1, 1]) & (table[1:, 1] <= table[:-1, 1]))
    return leaf


def whole_number(value: Any, otherwise: int = -1) -> int:
    """A stat as an integer; stats come as integers and as text."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return otherwise
    return number if -(2**62) < number < 2**62 else otherwise
