"""Phases of a step: letters of the recorder's spans, the gaps between them, and what each counts as.

A piece of a rank's time has a kind, a small number: a letter's place, a gap known by its neighbours, or
a phase that the user named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

LETTERS = "dfbocvgku"
DATA, FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT, EVALUATION, COLLECTION, PROFILER, USER = range(9)
EDGE = 9
"""The beginning or the end of a step, as the neighbour of a gap."""
HOLE = 15
"""Time of which the recording lost its steps."""
_GAPS = 100
_NAMED = 1000
"""Kinds from here on are phases that the user named."""

PARTS = (
    "forward",
    "backward",
    "optimizer",
    "input",
    "checkpoint",
    "evaluation",
    "gc",
    "host",
    "profiler",
    "unexplained",
)
"""What a rank does by itself, finer than accounts."""
ACCOUNTS = {
    "forward": "compute",
    "backward": "compute",
    "gc": "host",
    "profiler": "host",
}
"""Accounts of parts that are no accounts themselves."""
_PART_OF_LETTER = {
    DATA: "input",
    FORWARD: "forward",
    BACKWARD: "backward",
    OPTIMIZER: "optimizer",
    CHECKPOINT: "checkpoint",
    EVALUATION: "evaluation",
    COLLECTION: "gc",
    PROFILER: "profiler",
    USER: "host",
    HOLE: "unexplained",
}
_NAME_OF_KIND = _PART_OF_LETTER | {HOLE: "lost"}
_PART_OF_NAME = {
    "data": "input", "input": "input", "batch": "input", "loading": "input", "dataloader": "input",
    "forward": "forward", "backward": "backward",
    "optimizer": "optimizer", "step": "optimizer", "update": "optimizer",
    "checkpoint": "checkpoint", "save": "checkpoint", "saving": "checkpoint",
    "eval": "evaluation", "evaluate": "evaluation", "evaluation": "evaluation",
    "validation": "evaluation", "validate": "evaluation",
}  # fmt: skip
"""Names that users give to phases which have a letter, too."""
_WORDS = {
    DATA: "the next batch",
    FORWARD: "the forward pass",
    BACKWARD: "the backward pass",
    OPTIMIZER: "the optimizer",
    CHECKPOINT: "a checkpoint",
    EVALUATION: "an evaluation",
    COLLECTION: "a garbage collection",
    PROFILER: "a profiler window",
    USER: "a named phase",
}


def account_of(part: str) -> str:
    return ACCOUNTS.get(part, part)


def part_of_letter(letter: str) -> str:
    """The part of a phase, by its letter; "" for an unknown one."""
    return _PART_OF_LETTER[LETTERS.index(letter)] if letter and letter in LETTERS else ""


def gap_kinds(before: Ints, after: Ints) -> Ints:
    """Kinds of gaps by their neighbours; beside a profiler window they are the window's."""
    window = (before == PROFILER) | (after == PROFILER)
    return np.where(window, PROFILER, np.asarray(_GAPS + 16 * before + after, np.int64))


def named_kind(number: int) -> int:
    return _NAMED + number


def renamed_kinds(kinds: Ints, names: Sequence[str], places: Mapping[str, int]) -> Ints:
    """Kinds whose named phases have their place in another list; those without one have no name."""
    if not len(names) or all(places.get(name) == place for place, name in enumerate(names)):
        return kinds
    table = np.array([_NAMED + places[name] if name in places else USER for name in names])
    named = kinds >= _NAMED
    moved = kinds.copy()
    moved[named] = table[kinds[named] - _NAMED]
    return moved


def is_kind(kinds: Ints, names: int) -> NDArray[np.bool_]:
    """Which numbers are kinds of pieces, where the user named so many phases."""
    before, after = np.divmod(kinds - _GAPS, 16)
    gap = (kinds >= _GAPS) & (kinds < _NAMED) & (before <= EDGE) & (after <= EDGE)
    letter = (kinds >= 0) & (kinds <= USER)
    named = (kinds >= _NAMED) & (kinds < _NAMED + names)
    return np.asarray(letter | (kinds == HOLE) | gap | named)


def is_gap(kinds: Ints) -> NDArray[np.bool_]:
    """Which kinds are host time without a known phase: gaps, and phases with the user's own name."""
    return np.asarray((kinds >= _GAPS) | (kinds == USER))


def is_user_phase(kinds: Ints) -> NDArray[np.bool_]:
    return np.asarray((kinds == USER) | (kinds >= _NAMED))


def parts_of(kinds: Ints, names: Sequence[str]) -> Ints:
    """Places in `PARTS` of kinds; `names` are those of the user's phases."""
    table = np.full(_NAMED + len(names), PARTS.index("host"), np.int64)
    for kind, part in _PART_OF_LETTER.items():
        table[kind] = PARTS.index(part)
    for number, name in enumerate(names):
        table[_NAMED + number] = PARTS.index(_PART_OF_NAME.get(name.strip().lower(), "host"))
    return np.asarray(table[kinds])


def name_of(kind: int, names: Sequence[str]) -> str:
    """What a piece of time is, in one word: a phase, the user's own name for one, gap or lost."""
    if kind >= _NAMED:
        return names[kind - _NAMED]
    if kind >= _GAPS:
        return "gap"
    return "user" if kind == USER else _NAME_OF_KIND[kind]


def place_of(kind: int, names: Sequence[str]) -> str:
    """Where host time lies, in words: what came before it and what after."""
    if kind >= _NAMED:
        return f"in the phase {names[kind - _NAMED]!r}"
    if kind < _GAPS:
        return f"in {_WORDS.get(kind, 'a step')}"
    before, after = divmod(kind - _GAPS, 16)
    if before == EDGE and after == EDGE:
        return "in a step without a known phase"
    before = OPTIMIZER if before == EDGE else before  # a step begins where the optimizer ended
    ends = "the end of the step" if after == EDGE else _WORDS[after]
    began = "the batch" if before == DATA else _WORDS[before]
    return f"between {began} and {ends}"


@cache
def kinds_by_words() -> dict[tuple[str, str], int]:
    """Kinds by their `name_of` and `place_of`; the phases that a user names are not among them."""
    edges = range(EDGE + 1)
    gaps = [_GAPS + 16 * before + after for before in edges for after in edges]
    words: dict[tuple[str, str], int] = {}
    for kind in (*range(USER + 1), HOLE, *gaps):
        words.setdefault((name_of(kind, ()), place_of(kind, ())), kind)
    return words


def neighbours(kind: int) -> tuple[int, int]:
    """Letters before and after a gap; `EDGE`, `EDGE` for anything else."""
    if not _GAPS <= kind < _NAMED:
        return EDGE, EDGE
    before, after = divmod(kind - _GAPS, 16)
    return before, after
