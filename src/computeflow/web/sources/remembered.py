"""`Remembered`: what was computed last for each key, until what it was computed from has changed; for
what is read from files, `file_stamp` tells that.

Many viewers ask for the same at once: the first computes, the others wait for it, and where it fails
they fail with it. Who asks later tries again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from computeflow.errors import ComputeFlowError

T = TypeVar("T")
MAX_KEYS = 64
GONE = 0, 0


def file_stamp(path: str | Path) -> tuple[int, int]:
    """Size and time of change, `GONE` without the file: another one once it has changed."""
    try:
        stat = Path(path).stat()
    except OSError:
        return GONE
    return stat.st_size, stat.st_mtime_ns


@dataclass(slots=True)
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    revision: object = None
    value: Any = None
    filled: bool = False
    tries: int = 0
    failure: ComputeFlowError | None = None
    """Why the last try failed; None where it did not."""

    def fill(self, revision: object, make: Callable[[], Any]) -> None:
        self.failure = None
        try:
            self.value, self.revision, self.filled = make(), revision, True
        except ComputeFlowError as error:
            self.failure = error
            raise
        finally:
            self.tries += 1


class Remembered:
    """At most so many, the most recently used."""

    def __init__(self, most: int = MAX_KEYS) -> None:
        self._most = most
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, revision: object, make: Callable[[], T]) -> T:
        entry = self._entry(key)
        tries = entry.tries
        with entry.lock:
            if not entry.filled or entry.revision != revision:
                if entry.failure is not None and entry.tries > tries:
                    raise entry.failure.with_traceback(None)
                entry.fill(revision, make)
            value: T = entry.value
            return value

    def _entry(self, key: Hashable) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)
            return entry
