"""`PageBodies`: the JSON of pages, made once for all who ask, until the source changes.

Pages are made in a few threads of their own: one that takes a minute delays neither static files, nor
events, nor pages that are there already. A page whose readers have all left is not begun.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from computeflow.web.page_making import Making
from computeflow.web.page_threads import PageThreads

_THREADS = 8
"""Recordings that are read side by side, at most: each may take hundreds of megabytes."""
_MAX_KEPT = 64
_MAX_KEPT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PageBody:
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    kept: bool = True
    """Whether it holds until the source changes: what is incomplete may be whole then, and files to
    save are large and asked for once."""


class PageBodies:
    def __init__(self) -> None:
        self._threads = PageThreads(_THREADS)
        self._kept: OrderedDict[Hashable, tuple[Hashable, PageBody]] = OrderedDict()
        """The revision that each was made of, and the body; the most recently asked for last."""
        self._making: dict[tuple[Hashable, Hashable], Making[PageBody]] = {}
        self._lock = threading.RLock()

    def ask(
        self, key: Hashable, revision: Hashable, make: Callable[[], PageBody]
    ) -> Making[PageBody]:
        """The body of this key, joined: `leave` it. `make` is called where none of this revision is
        kept or being made.
        """
        place = key, revision
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept[0] == revision:
                self._kept.move_to_end(key)
                there = Making[PageBody]()
                there.join()
                there.made.set_result(kept[1])
                return there
            making = self._making.get(place)
            if making is not None and making.join():
                return making
            making = self._making[place] = Making()
            making.join()

        def keep() -> PageBody:
            body = make()
            if body.kept:
                self._keep(key, revision, body)
            return body

        making.made.add_done_callback(lambda made: self._forget(place, made))
        self._threads.submit(making.made, keep, making.is_wanted)
        return making

    def run(self, call: Callable[[], None]) -> None:
        """Something that pages will need; what is wrong with it, they say."""
        self._threads.submit(Future(), call, lambda: True)

    def close(self) -> None:
        self._threads.close()

    def _forget(self, place: tuple[Hashable, Hashable], made: Future[PageBody]) -> None:
        """By its future, which keeps its callbacks: one that kept the making would keep the body."""
        with self._lock:
            making = self._making.get(place)
            if making is not None and making.made is made:
                del self._making[place]

    def _keep(self, key: Hashable, revision: Hashable, body: PageBody) -> None:
        with self._lock:
            self._kept[key] = revision, body
            self._kept.move_to_end(key)
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        size = sum(len(body.content) for _, body in self._kept.values())
        while len(self._kept) > _MAX_KEPT or (size > _MAX_KEPT_BYTES and len(self._kept) > 1):
            _, (_, body) = self._kept.popitem(last=False)
            size -= len(body.content)
