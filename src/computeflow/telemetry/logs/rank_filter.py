"""Choice of the rank whose lines count; the lines of other ranks are copies."""

from __future__ import annotations

from collections import deque

from computeflow.files.limits import LOG_STREAMS

_RECENT = 64


class RankFilter:
    def __init__(self) -> None:
        self.copies = 0
        self._counted_stream: str | None = None
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._copying: set[str] = set()

    def counts(self, iteration: int, stream: str, last: int | None) -> bool:
        """Whether this iteration, logged in `stream`, is new; `last` is the last one that was."""
        if self._counted_stream is None:
            self._counted_stream = stream
        if stream != self._counted_stream:
            ahead = last is not None and iteration > last
            if stream in self._copying or iteration in self._recent or ahead:
                if len(self._copying) < LOG_STREAMS:
                    self._copying.add(stream)
                self.copies += 1
                return False
            self._counted_stream = stream  # goes back, in a stream not seen before: another launch
        self._recent.append(iteration)
        return True

    def forget(self) -> None:
        """Start over: in a new launch another rank may be counted."""
        self._counted_stream = None
        self._recent.clear()
        self._copying.clear()
