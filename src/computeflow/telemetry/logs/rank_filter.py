"""Which of many ranks' lines count: one speaks for all, the others' same words are echoes."""

from __future__ import annotations

from collections import deque

_RECENT = 64
_MAX_STREAMS = 1 << 16


class RankFilter:
    def __init__(self) -> None:
        self.echoes = 0
        self._speaker: str | None = None
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._echoing: set[str] = set()

    def counts(self, iteration: int, stream: str, last: int | None) -> bool:
        """Whether this iteration, said in `stream`, is news; `last` is the last one that was."""
        if self._speaker is None:
            self._speaker = stream
        if stream != self._speaker:
            ahead = last is not None and iteration > last
            if stream in self._echoing or iteration in self._recent or ahead:
                if len(self._echoing) < _MAX_STREAMS:
                    self._echoing.add(stream)
                self.echoes += 1
                return False
            self._speaker = stream  # goes back, in a voice not heard before: another launch
        self._recent.append(iteration)
        return True

    def forget(self) -> None:
        """A new launch may have another rank speak."""
        self._speaker = None
        self._recent.clear()
        self._echoing.clear()
