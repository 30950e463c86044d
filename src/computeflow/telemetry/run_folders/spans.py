"""Spans of a step that lie inside each other, as pieces one after the other: `flatten`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from computeflow.telemetry.run_folders.phases import CHECKPOINT, EVALUATION, PROFILER

_KEEPS = (CHECKPOINT, EVALUATION)
"""Phases that keep what lies inside them: the forward of an evaluation is evaluation."""
_ALWAYS = (CHECKPOINT, PROFILER)
"""Phases that are told apart inside those, too."""


class Span(NamedTuple):
    kind: int
    start: int
    end: int
    lead: int = -1
    """How long after the host the device came to its end; -1 where nobody knows."""
    began: int = -1
    """Start of the whole span that this is the last piece of."""


def flatten(spans: list[Span]) -> list[Span]:
    """Pieces of spans without overlap; the innermost counts."""
    if all(a.end <= b.start for a, b in pairwise(spans)):
        return spans
    pieces = sorted(_pieces(spans), key=lambda piece: piece[1])
    last = {owner: row for row, (owner, *_) in enumerate(pieces)}
    return [
        Span(kind, start, end, *_lead_of(spans[owner]))
        if last[owner] == row
        else Span(kind, start, end)
        for row, (owner, start, end, kind) in enumerate(pieces)
    ]


def _lead_of(span: Span) -> tuple[int, int]:
    return span.lead, span.start


def _pieces(spans: list[Span]) -> Iterator[tuple[int, int, int, int]]:
    """Owner, start, end and kind of each piece."""
    order = sorted(range(len(spans)), key=lambda row: (spans[row].start, -spans[row].end))
    stack: list[tuple[int, int]] = []  # row of the span, kind that it counts as
    now = 0
    for row in order:
        span = spans[row]
        while stack and spans[stack[-1][0]].end <= span.start:
            owner, kind = stack.pop()
            if spans[owner].end > now:
                yield owner, now, spans[owner].end, kind
                now = spans[owner].end
        if stack and span.start > now:
            yield stack[-1][0], now, span.start, stack[-1][1]
        now = max(now, span.start)
        outer = stack[-1][1] if stack else -1
        kept = outer in _KEEPS and span.kind not in _ALWAYS
        stack.append((row, outer if kept else span.kind))
    while stack:
        owner, kind = stack.pop()
        if spans[owner].end > now:
            yield owner, now, spans[owner].end, kind
            now = spans[owner].end
