"""`find_saves`: how often a run saves in its steps, and how long a save blocks it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from computeflow.telemetry.run_folders.attempt_time import AttemptTime
from computeflow.telemetry.run_folders.phases import PARTS, Ints
from computeflow.telemetry.run_folders.rank_file import Floats
from computeflow.telemetry.run_folders.run_facts import SaveTimes

_WHOLE = 0.2
"""Least share of the longest save: shorter ones write something else than the model."""
_CHECKPOINT = PARTS.index("checkpoint")


def find_saves(attempts: Sequence[AttemptTime]) -> SaveTimes | None:
    """None where no step but the first of an attempt has a save."""
    found = [_saves(attempt) for attempt in attempts]
    longest = max((float(micros.max(initial=0.0)) for _, micros in found), default=0.0)
    if not longest:
        return None
    lengths, intervals = [], []
    for attempt, (end, micros) in zip(attempts, found, strict=True):
        whole = micros >= _WHOLE * longest
        end, micros = end[whole], micros[whole]
        if len(end):
            first = min(rank.first for rank in attempt.ranks if len(rank.steps))
            lengths.append(micros)
            intervals.append(np.diff(end, prepend=first) - micros)
    taken = np.concatenate(lengths)
    return SaveTimes(
        count=len(taken),
        seconds=float(np.median(taken)) / 1e6,
        interval_seconds=float(max(np.median(np.concatenate(intervals)), 1.0)) / 1e6,
    )


def _saves(attempt: AttemptTime) -> tuple[Ints, Floats]:
    """Ends of the steps of an attempt that some rank saved in, and how long the slowest took."""
    numbers, ends, lengths = [], [], []
    for rank in attempt.ranks:
        micros = rank.parts[:, _CHECKPOINT]
        rows = np.flatnonzero(micros[1:] > 0) + 1
        numbers.append(rank.steps.number[rows])
        ends.append(rank.steps.end[rows])
        lengths.append(micros[rows])
    number, place = np.unique(np.concatenate(numbers), return_inverse=True)
    end = np.zeros(len(number), np.int64)
    micros = np.zeros(len(number))
    np.maximum.at(end, place, np.concatenate(ends))
    np.maximum.at(micros, place, np.concatenate(lengths))
    return end, micros
