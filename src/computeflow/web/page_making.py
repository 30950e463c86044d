"""`Making`: what threads make for all who wait for it. `SharedCall`: one call at a time for all."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from computeflow.web.page_threads import PageThreads

T = TypeVar("T")
_ABANDONED_SECONDS = 5.0
"""What waits is not begun where nobody comes back for so long; the browser does every half second."""


class Making(Generic[T]):
    """What is being made, or there, and who waits for it."""

    def __init__(self) -> None:
        self.made: Future[T] = Future()
        self._began, self._asked = time.monotonic(), -math.inf
        self._waiters = 0
        self._given_up = False
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def join(self) -> bool:
        """Wait for it until `leave`; False where it was given up, and has to be asked for anew."""
        with self._lock:
            self._waiters += not self._given_up
            return not self._given_up

    def leave(self, *, comes_back: bool) -> None:
        with self._lock:
            self._waiters -= 1
            if comes_back:
                self._asked = time.monotonic()

    def is_wanted(self) -> bool:
        """Whether anybody waits for it; where nobody does it is given up for good."""
        with self._lock:
            left = time.monotonic() - self._asked >= _ABANDONED_SECONDS
            self._given_up = self._given_up or (not self._waiters and left)
            return not self._given_up


class SharedCall(Generic[T]):
    """Who asks while it is called has the answer of the next call, which begins after the question."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._threads = PageThreads(1)
        self._next: Making[T] | None = None
        self._lock = threading.Lock()

    def ask(self) -> Making[T]:
        """Joined: `leave` it."""
        with self._lock:
            if self._next is not None and self._next.join():
                return self._next
            making = self._next = Making()
            making.join()
        self._threads.submit(making.made, lambda: self._begin(making), making.is_wanted)
        return making

    def close(self) -> None:
        self._threads.close()

    def _begin(self, making: Making[T]) -> T:
        with self._lock:
            if self._next is making:
                self._next = None
        return self._call()
