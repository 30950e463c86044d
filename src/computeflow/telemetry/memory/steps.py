"""Steps in a memory history: `find_steps`.

Signals in order of preference: annotations of the profiler's steps, annotations of the optimizer
(torch writes them into a snapshot by itself since 2.5), events inside an optimizer by their stacks,
and the rise and fall of memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from computeflow.telemetry.memory.history import History
from computeflow.telemetry.memory.snapshot import Annotation, Ints, Snapshot
from computeflow.telemetry.memory.stacks import StackKind

_MIN_STEPS = 3
"""Fewest repetitions that count as steps."""
_STEP = re.compile(r"^ProfilerStep#?\s*\d+")
_OPTIMIZER = "Optimizer.step#"
_RISE, _FALL = 0.6, 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    ends: Ints
    """Index of the event before which each step ended."""
    optimizer: Ints
    """Index of the event before which each optimizer step began; empty where unknown."""
    known_from: str
    """How the steps are known; empty where there are none."""

    def __len__(self) -> int:
        return len(self.ends)


NONE = Steps(ends=np.zeros(0, np.int64), optimizer=np.zeros(0, np.int64), known_from="")


def find_steps(snapshot: Snapshot, history: History, kinds: Sequence[StackKind]) -> Steps:
    """The steps of a history; `kinds` are those of the stacks."""
    if not len(history):
        return NONE
    return (
        _annotated(snapshot.annotations, history)
        or _in_optimizer(history, kinds)
        or _waves(history)
        or NONE
    )


def _annotated(annotations: Sequence[Annotation], history: History) -> Steps | None:
    time = history.events.time
    profiled = [annotation for annotation in annotations if _STEP.match(annotation.name)]
    stepping = _most_frequent(
        [annotation for annotation in annotations if annotation.name.startswith(_OPTIMIZER)]
    )
    chosen = profiled or stepping
    if not chosen or not (time > 0).all():
        return None
    begun = np.searchsorted(
        time, [annotation.start for annotation in stepping], side="left"
    ).astype(np.int64)
    ends = np.searchsorted(time, [annotation.end for annotation in chosen], side="left").astype(
        np.int64
    )
    inside = (ends > 0) & (ends <= len(time))
    return Steps(
        ends=ends[inside],
        optimizer=begun[(begun > 0) & (begun < len(time))],
        known_from="annotations of the profiler" if profiled else "annotations of the optimizer",
    )


def _most_frequent(annotations: Sequence[Annotation]) -> list[Annotation]:
    """Annotations of the most frequent name."""
    names = Counter(annotation.name for annotation in annotations).most_common(1)
    return [annotation for annotation in annotations if annotation.name == names[0][0]]


def _in_optimizer(history: History, kinds: Sequence[StackKind]) -> Steps | None:
    """Steps from runs of events inside an optimizer; between two of them a model was called."""
    kind = np.array([int(value) for value in kinds], np.int8)[history.events.stack]
    marks = np.flatnonzero((kind == StackKind.OPTIMIZER) | (kind == StackKind.FORWARD))
    stepping = kind[marks] == StackKind.OPTIMIZER
    first = stepping & ~np.concatenate([[False], stepping[:-1]])
    last = stepping & ~np.concatenate([stepping[1:], [False]])
    if first.sum() < _MIN_STEPS:
        return None
    return Steps(
        ends=marks[last] + 1, optimizer=marks[first], known_from="stacks inside the optimizer"
    )


def _waves(history: History) -> Steps | None:
    """Steps that end where memory has fallen again; only if all take about as many events."""
    level = history.allocated
    middle = level[len(level) // 4 :]
    low, high = int(middle.min()), int(middle.max())
    above = level > low + _RISE * (high - low)
    below = level < low + _FALL * (high - low)
    ends, risen = [], False
    for at in np.flatnonzero(above | below).tolist():
        if above[at]:
            risen = True
        elif risen:
            ends.append(at)
            risen = False
    lengths = np.diff(ends)
    if len(ends) < _MIN_STEPS + 1 or lengths.std() > 0.3 * lengths.mean():
        return None
    return Steps(
        ends=np.array(ends, np.int64),
        optimizer=NONE.optimizer,
        known_from="the rise and fall of memory",
    )
