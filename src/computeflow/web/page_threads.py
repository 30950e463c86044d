"""`PageThreads`: a few threads that make pages, at most so many at once.

A server that is told to stop ends while they still read: `concurrent.futures` would wait for its
threads, and a page may take minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from computeflow.collection.collector.clients import RefusedError

T = TypeVar("T")


class PageThreads:
    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._unanswered: set[Future[Any]] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, make: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise _stopping()
            self._unanswered.add(future)
            if len(self._threads) < self._most:
                name = f"page-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
        self._calls.put((future, make))
        return future

    def close(self) -> None:
        """Refuse what waits and what is being made: whoever waits for it is told at once."""
        with self._lock:
            self._closed = True
            unanswered, self._unanswered = self._unanswered, set()
        for future in unanswered:
            future.set_exception(_stopping())

    def _work(self) -> None:
        while not self._closed:
            future, make = self._calls.get()
            if future not in self._unanswered:
                continue
            try:
                value = make()
            except BaseException as error:
                if self._take(future):
                    future.set_exception(error)
            else:
                if self._take(future):
                    future.set_result(value)
            del future, make

    def _take(self, future: Future[Any]) -> bool:
        """Whether nobody has answered it yet."""
        with self._lock:
            found = future in self._unanswered
            self._unanswered.discard(future)
            return found


def _stopping() -> RefusedError:
    return RefusedError(503, "the server is stopping")
