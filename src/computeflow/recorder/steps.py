"""Steps and their phases on the thread that trains: `StepWatch`. Knows nothing of torch.

A step lasts from the end of one optimizer step to the end of the next. Between the two, spans are
noted as they begin and end; whatever they are made of, this costs a few list appends a step.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident, main_thread
from time import perf_counter_ns
from typing import Any

MAX_SPANS = 40
"""Spans that a step keeps; of further ones count and time are kept."""
DATA, FORWARD, BACKWARD, OPTIMIZER = "d", "f", "b", "o"
CHECKPOINT, EVALUATION, COLLECTION, WINDOW, NAMED = "c", "v", "g", "k", "u"
KNOWN = {
    "data": DATA,
    "forward": FORWARD,
    "backward": BACKWARD,
    "optimizer": OPTIMIZER,
    "checkpoint": CHECKPOINT,
    "evaluation": EVALUATION,
}
"""Phases by the names that users give them."""
QUIET = {EVALUATION: 1, CHECKPOINT: 2, WINDOW: 2}
"""Phases whose inside is not split; in an evaluation, those of a higher rank are."""

Span = list[Any]
"""[letter, begin, end, name or None], nanoseconds of `perf_counter_ns`."""


class Step:
    """A step that has ended, as the training thread leaves it."""

    __slots__ = ("begin", "collected", "end", "extra", "more", "number", "profiled", "spans")

    def __init__(self, number: int, begin: int) -> None:
        self.number, self.begin, self.end = number, begin, 0
        self.spans: list[Span] = []
        self.more: dict[str, list[int]] = {}
        self.collected = [0, 0]
        """Garbage collections: count and nanoseconds."""
        self.profiled = False
        self.extra: dict[str, Any] = {}


class StepWatch:
    """Notes spans and steps of one thread; `ended` is called with each step."""

    def __init__(self, ended: Callable[[Step], None]) -> None:
        self.thread = main_thread().ident
        self.steps = 0
        self.profiling = False
        self.step = Step(1, 0)
        self._open: list[Span] = []
        self._quiet = 0
        self._ended = ended
        self._due = False
        self.mark: Callable[[Span], None] | None = None
        """Called with a span that has just ended: notes where the device is."""

    @property
    def now_in(self) -> tuple[str, int]:
        """The innermost open phase and since when, for the heart beat of another thread."""
        spans = self._open[-1:]
        return (spans[0][0], spans[0][1]) if spans else ("", self._last_end())

    def _last_end(self) -> int:
        spans = self.step.spans[-1:]
        return spans[0][2] if spans and spans[0][2] else self.step.begin

    def begin(self, letter: str, name: str | None = None) -> Span | None:
        """Open a span; None where it is not kept: another thread, or inside a quiet phase."""
        if self._quiet >= QUIET.get(letter, 1) or get_ident() != self.thread:
            return None
        now = perf_counter_ns()
        if not self.step.begin:
            self.step.begin = now
        span = [letter, now, 0, name]
        self._open.append(span)
        self._quiet = max(self._quiet, QUIET.get(letter, 0))
        if len(self.step.spans) < MAX_SPANS:
            self.step.spans.append(span)
        return span

    def resume(self, letter: str) -> Span | None:
        """Open the last span again where it is of this phase, else a new one: calls one after the
        other are one span, and so is one inside of another.
        """
        if self._quiet or get_ident() != self.thread or self.is_in(letter):
            return None
        spans = self.step.spans
        if not 0 < len(spans) < MAX_SPANS or spans[-1][0] != letter:
            return self.begin(letter)
        spans[-1][2] = 0
        self._open.append(spans[-1])
        return spans[-1]

    def end(self, span: Span | None) -> None:
        if span is None:
            return
        now = perf_counter_ns()
        span[2] = now
        while self._open:  # an exception may have left inner ones open
            inner = self._open.pop()
            if inner is span:
                break
            inner[2] = inner[2] or now
        if self._quiet:
            self._quiet = max((QUIET.get(each[0], 0) for each in self._open), default=0)
        if self.mark is not None:
            self.mark(span)
        if len(self.step.spans) == MAX_SPANS and span is not self.step.spans[-1]:
            self._count_if_left_out(span)
        if self._due and span[0] == BACKWARD and not self.is_in(BACKWARD):
            self._due = False
            self.boundary()

    def is_in(self, *letters: str) -> bool:
        """Whether a span of one of these phases is open."""
        return any(span[0] in letters for span in self._open)

    def _count_if_left_out(self, span: Span) -> None:
        if any(span is kept for kept in self.step.spans):
            return
        count = self.step.more.setdefault(span[0], [0, 0])
        count[0] += 1
        count[1] += span[2] - span[1]

    def drop(self, span: Span | None) -> None:
        """Forget an open span: it was not what it seemed to be."""
        if span is None:
            return
        self.end(span)
        self.step.spans = [kept for kept in self.step.spans if kept is not span]

    def join(self, span: Span) -> None:
        """A span that has just ended takes in the waiting for data before it, and is made one with
        the last of its phase, if there was nothing else between them.
        """
        spans = self.step.spans
        if not spans or spans[-1] is not span:
            return
        at = len(spans) - 1
        while at and spans[at - 1][0] == DATA:
            at -= 1
        if at and spans[at - 1][0] == span[0]:
            at -= 1
        span[1] = spans[at][1]
        spans[at:] = [span]

    def collected(self, begin: int, end: int) -> None:
        """A garbage collection on the training thread; long ones are spans."""
        if not self.step.begin:
            return
        self.step.collected[0] += 1
        self.step.collected[1] += end - begin
        if end - begin >= 1_000_000 and not self._quiet and len(self.step.spans) < MAX_SPANS:
            self.step.spans.append([COLLECTION, begin, end, None])

    def boundary(self) -> None:
        """The step has ended, now; inside of backward, it ends with it."""
        now = perf_counter_ns()
        if self.is_in(BACKWARD):  # an optimizer in a hook of autograd, perhaps on its thread
            self._due = True
            return
        if get_ident() != self.thread:
            self._move_here(now)
        self._end_step(now)

    def boundaries(self, moments: list[int]) -> None:
        """Steps have ended at these moments: that is known only now."""
        for moment in moments:
            if moment > self.step.begin:
                self._end_step(moment)

    def _end_step(self, moment: int) -> None:
        step = self.step
        step.end = moment
        step.begin = step.begin or moment
        step.profiled = self.profiling
        self.steps += 1
        self.step = Step(self.steps + 1, moment)
        self._share_out(step)
        self._ended(step)

    def _share_out(self, step: Step) -> None:
        """Spans that go on after the step's end are cut there; later ones are the next step's."""
        kept, moment = [], step.end
        for span in step.spans:
            if span[1] < moment:
                goes_on = not span[2] or span[2] > moment
                kept.append([span[0], span[1], moment, span[3]] if goes_on else span)
                if not goes_on:
                    continue
                span[1] = moment
            self.step.spans.append(span)
        for span in self._open:
            if span[1] < moment:  # it was beyond what the step keeps
                span[1] = moment
                self.step.spans.append(span)
        step.spans = kept

    def rest(self) -> Step:
        """What came after the last step, up to now: the process ends."""
        now = perf_counter_ns()
        rest = Step(self.step.number, self.step.begin or now)
        rest.end, rest.extra, rest.more = now, self.step.extra, self.step.more
        rest.collected = self.step.collected
        rest.spans = [[*span[:2], span[2] or now, span[3]] for span in self.step.spans]
        return rest

    def _move_here(self, now: int) -> None:
        """Another thread trains: what the last one had open is not its."""
        self.thread = get_ident()
        self._open, self._quiet = [], 0
        self.step = Step(self.steps + 1, now)
