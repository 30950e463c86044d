"""`PageBodies`: the JSON of pages, made once for all who ask, until the source changes.

Pages are made in a few threads of their own: one that takes a minute delays neither static files, nor
events, nor pages that are there already.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from computeflow.web.page_threads import PageThreads

T = TypeVar("T")
_THREADS = 8
"""Recordings that are read side by side, at most: each may take hundreds of megabytes."""
_MAX_KEPT = 64
_MAX_KEPT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """A body, there or being made."""

    body: Future[bytes]
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


class PageBodies:
    def __init__(self) -> None:
        self._threads = PageThreads(_THREADS)
        self._kept: OrderedDict[Hashable, tuple[Hashable, bytes]] = OrderedDict()
        """The revision that each was made of, and the body; the most recently asked for last."""
        self._making: dict[tuple[Hashable, Hashable], Making] = {}
        self._lock = threading.Lock()

    def ask(self, key: Hashable, revision: Hashable, make: Callable[[], bytes]) -> Making:
        """The body of this key; `make` is called only where none of this revision is known."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept[0] == revision:
                self._kept.move_to_end(key)
                made: Future[bytes] = Future()
                made.set_result(kept[1])
                return Making(body=made)
            making = self._making.get((key, revision))
            if making is None:
                future = self._threads.submit(partial(self._make, key, revision, make))
                making = self._making[key, revision] = Making(body=future)
            return making

    def run(self, make: Callable[[], T]) -> Future[T]:
        """Something else that takes as long as a page, and is not kept."""
        return self._threads.submit(make)

    def close(self) -> None:
        self._threads.close()

    def _make(self, key: Hashable, revision: Hashable, make: Callable[[], bytes]) -> bytes:
        try:
            body = make()
        finally:
            with self._lock:
                del self._making[key, revision]
        with self._lock:
            self._kept[key] = revision, body
            self._kept.move_to_end(key)
            self._forget_oldest()
        return body

    def _forget_oldest(self) -> None:
        size = sum(len(body) for _, body in self._kept.values())
        while len(self._kept) > _MAX_KEPT or (size > _MAX_KEPT_BYTES and len(self._kept) > 1):
            _, (_, body) = self._kept.popitem(last=False)
            size -= len(body)
