"""`PageThreads`: a few threads that make pages, at most so many at once, in the order of asking.

What nobody waits for any more is not begun, and more than a few that wait are refused. A server that is
told to stop ends while they still read: `concurrent.futures` would wait for its threads, and a page may
take minutes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from computeflow.collection.collector.clients import RefusedError

T = TypeVar("T")
MAX_WAITING = 64
_BUSY_SECONDS = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    future: Future[Any]
    make: Callable[[], Any]
    wanted: Callable[[], bool]


class PageThreads:
    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[_Call] = deque()
        self._begun: set[_Call] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._changed = threading.Condition()

    def submit(self, made: Future[T], make: Callable[[], T], wanted: Callable[[], bool]) -> None:
        """Let the future have what `make` returns; RefusedError where that is not begun."""
        call = _Call(made, make, wanted)
        with self._changed:
            refused = self._drop_unwanted() if len(self._waiting) >= MAX_WAITING else []
            if self._closed or len(self._waiting) >= MAX_WAITING:
                refused.append(call)
            else:
                self._waiting.append(call)
                self._start_thread()
                self._changed.notify()
        for each in refused:
            each.future.set_exception(_stopping() if self._closed else _busy())

    def close(self) -> None:
        """Refuse what waits and what is being made: whoever waits for it is told at once."""
        with self._changed:
            self._closed = True
            unanswered = [*self._waiting, *self._begun]
            self._waiting.clear()
            self._begun.clear()
            self._changed.notify_all()
        for call in unanswered:
            call.future.set_exception(_stopping())

    def _drop_unwanted(self) -> list[_Call]:
        calls = [*self._waiting]
        self._waiting = deque(call for call in calls if call.wanted())
        return [call for call in calls if call not in self._waiting]

    def _start_thread(self) -> None:
        """Where none is idle: each thread keeps memory of its own for what it makes."""
        if len(self._threads) < min(self._most, len(self._begun) + len(self._waiting)):
            name = f"page-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()

    def _work(self) -> None:
        while (call := self._next()) is not None:
            try:
                if not call.wanted():
                    raise _busy()
                value = call.make()
            except BaseException as error:
                if self._end(call):
                    call.future.set_exception(error)
            else:
                if self._end(call):
                    call.future.set_result(value)
                del value
            del call

    def _next(self) -> _Call | None:
        """The call that has waited longest; None once the server stops."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            call = self._waiting.popleft()
            self._begun.add(call)
            return call

    def _end(self, call: _Call) -> bool:
        """Whether nobody has answered it yet."""
        with self._changed:
            found = call in self._begun
            self._begun.discard(call)
            return found


def _stopping() -> RefusedError:
    return RefusedError(503, "the server is stopping")


def _busy() -> RefusedError:
    return RefusedError(429, "too many pages are being made: try again", _BUSY_SECONDS)
