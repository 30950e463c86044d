"""`PageBodies`: the JSON of pages, made once for all who ask, until the source changes.

Pages are made in a few threads of their own: one that takes a minute delays neither static files, nor
events, nor pages that are there already. A page whose readers have all left is not begun.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Generic, TypeVar

from computeflow.web.page_threads import PageThreads

T = TypeVar("T")
_THREADS = 8
"""Recordings that are read side by side, at most: each may take hundreds of megabytes."""
_ABANDONED_SECONDS = 5.0
"""A page that waits is not made where nobody asks for so long; the browser asks every half second."""
_MAX_KEPT = 64
_MAX_KEPT_BYTES = 64 << 20


class Making(Generic[T]):
    """A page, there or being made, and whether anybody waits for it."""

    def __init__(self) -> None:
        self.made: Future[T] = Future()
        self._began = self._asked = time.monotonic()
        self._waiters = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def wanted(self) -> bool:
        return self._waiters > 0 or time.monotonic() - self._asked < _ABANDONED_SECONDS

    def ask_again(self) -> None:
        self._asked = time.monotonic()

    @contextmanager
    def waited(self) -> Iterator[None]:
        """While somebody waits for it; all do so in one thread, that of the event loop."""
        self._waiters += 1
        try:
            yield
        finally:
            self._waiters -= 1
            self.ask_again()


class PageBodies:
    def __init__(self) -> None:
        self._threads = PageThreads(_THREADS)
        self._kept: OrderedDict[Hashable, tuple[Hashable, bytes]] = OrderedDict()
        """The revision that each was made of, and the body; the most recently asked for last."""
        self._making: dict[tuple[Hashable, Hashable], Making[bytes]] = {}
        self._lock = threading.Lock()

    def ask(self, key: Hashable, revision: Hashable, make: Callable[[], bytes]) -> Making[bytes]:
        """The body of this key; `make` is called only where none of this revision is known."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept[0] == revision:
                self._kept.move_to_end(key)
                there = Making[bytes]()
                there.made.set_result(kept[1])
                return there
            making = self._making.get((key, revision))
            if making is not None:
                making.ask_again()
                return making
            making = self._making[key, revision] = Making()

        def keep() -> bytes:
            body = make()
            self._keep(key, revision, body)
            return body

        making.made.add_done_callback(lambda _: self._making.pop((key, revision), None))
        self._submit(making, keep)
        return making

    def run(self, make: Callable[[], T]) -> Making[T]:
        """Something else that takes as long as a page, and is not kept."""
        making = Making[T]()
        self._submit(making, make)
        return making

    def _submit(self, making: Making[T], make: Callable[[], T]) -> None:
        self._threads.submit(making.made, make, lambda: making.wanted)

    def close(self) -> None:
        self._threads.close()

    def _keep(self, key: Hashable, revision: Hashable, body: bytes) -> None:
        with self._lock:
            self._kept[key] = revision, body
            self._kept.move_to_end(key)
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        size = sum(len(body) for _, body in self._kept.values())
        while len(self._kept) > _MAX_KEPT or (size > _MAX_KEPT_BYTES and len(self._kept) > 1):
            _, (_, body) = self._kept.popitem(last=False)
            size -= len(body)
