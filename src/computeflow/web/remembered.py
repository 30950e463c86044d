"""`Remembered`: what was computed last for each key, until what it was computed from has changed.

Many viewers ask for the same at once: the first computes, the others wait for it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
MAX_KEYS = 64


@dataclass(slots=True)
class _Place:
    lock: threading.Lock = field(default_factory=threading.Lock)
    revision: object = None
    value: Any = None
    filled: bool = False


class Remembered:
    """At most so many, those that were asked for last."""

    def __init__(self, most: int = MAX_KEYS) -> None:
        self._most = most
        self._places: OrderedDict[Hashable, _Place] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, revision: object, make: Callable[[], T]) -> T:
        place = self._place(key)
        with place.lock:
            if not place.filled or place.revision != revision:
                place.value, place.revision, place.filled = make(), revision, True
            value: T = place.value
            return value

    def _place(self, key: Hashable) -> _Place:
        with self._lock:
            place = self._places.setdefault(key, _Place())
            self._places.move_to_end(key)
            while len(self._places) > self._most:
                self._places.popitem(last=False)
            return place
