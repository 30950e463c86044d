"""NVTX ranges: their meaning for the accounting, and which of them are steps.

Ranges that torch writes for operators (`torch.autograd.profiler.emit_nvtx`) carry numbers after
their names: "aten::mm, seq = 12, op_id = 34, sizes = [...]".
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from computeflow.telemetry.nsys.database import MAX_TEXT, Database
from computeflow.telemetry.traces.event_names import EventTable, Mark, mark_of
from computeflow.telemetry.traces.trace import Ints, TraceStep

_KINDS = "(59, 60, 70, 71)"
"""Event types of ranges, pushed and popped or started and ended, of NVTX and NVTXT:
`ENUM_NSYS_EVENT_TYPE`."""
_NUMBERS = re.compile(r",\s(?:seq|op_id|sizes|input_op_ids) =")
_SEQUENCE = re.compile(r",\sseq = \d")
_OPERATOR = re.compile(r"^(aten|autograd|c10d|_c10d_functional|prims|torch|nccl)\w*::|^nccl[A-Z]")
_DIGITS = re.compile(r"\d{1,9}")
_NAMED = re.compile(
    r"(?:^|[^a-z])(?:(?:train|training|profiler)?[ _.-]?steps?|iter|iteration|batch)"
    r"(?:[^a-z]|$)"
)
_PART = re.compile(
    r"optim|micro|mini|layer|block|chunk|stage|expert|bucket|head|rank|epoch|lr_|sched"
)
_MAX_FAMILIES = 20_000
_MAX_OF_ONE = 100_000
_MIN_LAUNCHES = 0.8
"""Least share of the launches between the first step and the last that is inside of steps."""
_MIN_WHOLE = 0.5
"""Least share of all launches of the recording that is inside of steps."""
_MIN_PLAIN = 5
"""Repetitions that make a range without a telling name a step."""
_EVEN = 0.1
"""Largest spread of the launches per range, against their mean."""


@dataclass(slots=True)
class Family:
    """Ranges of one thread whose names differ only in numbers."""

    label: str
    start: array[int] = field(default_factory=lambda: array("q"))
    end: array[int] = field(default_factory=lambda: array("q"))
    number: array[int] = field(default_factory=lambda: array("q"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Ranges with a meaning, and ranges that may be steps."""

    marks: Ints
    """Rows of start, end, thread as the export writes it, mark, and number of the name."""
    families: list[Family]
    rows: int
    left_out: tuple[str, ...]


def read_ranges(
    database: Database, where: str, values: tuple[int, ...], names: Mapping[str, int]
) -> Ranges:
    """Read the ranges of some threads; `names` numbers a name. Ranges without a meaning are dropped
    at once.
    """
    marks: array[int] = array("q")
    families = _Families()
    known: dict[str, tuple[Mark, str, bool]] = {}
    count = 0
    for start, end, thread, text in _rows(database, where, values):
        count += 1
        cut = _NUMBERS.search(text)
        name = text[: cut.start()] if cut else text
        if name not in known:
            if len(known) > _MAX_FAMILIES:
                known.clear()
            known[name] = _meaning(name, operator=cut is not None)
        mark, label, operator = known[name]
        if mark is Mark.NONE and operator and name.startswith("aten::") and _SEQUENCE.search(text):
            mark = Mark.FORWARD_OP
        if mark is not Mark.NONE:
            marks.extend((start, end, thread, int(mark), names[name]))
        if not operator:
            families.add((thread, label), name, start, end)
    crowded = "too many names of NVTX ranges: some were not considered as steps"
    return Ranges(
        marks=np.array(marks, np.int64).reshape(-1, 5),
        families=[family for family in families.by_key.values() if family is not None],
        rows=count,
        left_out=(crowded,) if families.crowded else (),
    )


class _Families:
    """Families by thread and label; None where a family has too many ranges to be steps."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[int, str], Family | None] = {}
        self.crowded = False

    def add(self, key: tuple[int, str], name: str, start: int, end: int) -> None:
        if key not in self.by_key:
            if len(self.by_key) >= _MAX_FAMILIES:
                self.crowded = True
                return
            self.by_key[key] = Family(key[1])
        family = self.by_key[key]
        if family is None:
            return
        numbers = _DIGITS.findall(name)
        family.start.append(start)
        family.end.append(end)
        family.number.append(int(numbers[-1]) if numbers else -1)
        if len(family.start) > _MAX_OF_ONE:
            self.by_key[key] = None


def _meaning(name: str, *, operator: bool) -> tuple[Mark, str, bool]:
    operator = operator or bool(_OPERATOR.match(name))
    mark = mark_of(name, EventTable.OP if operator else EventTable.ANNOTATION)
    return Mark.NONE if mark is Mark.STEP else mark, _DIGITS.sub("#", name), operator


def _rows(
    database: Database, where: str, values: tuple[int, ...]
) -> Iterator[tuple[int, int, int, str]]:
    """Start, end, thread and text; texts of registered strings are read once."""
    table = "NVTX_EVENTS"
    if not database.has(table, "start", "end", "globalTid"):
        return
    text = f"substr(text, 1, {MAX_TEXT})" if database.has(table, "text") else "NULL"
    number = "CAST(textId AS INTEGER)" if database.has(table, "textId") else "NULL"
    kinds = f"AND eventType IN {_KINDS}" if database.has(table, "eventType") else ""
    query = (
        f'SELECT CAST(start AS INTEGER), CAST("end" AS INTEGER), CAST(globalTid AS INTEGER), {text}, '
        f'{number} FROM {table} WHERE "end" > start AND start >= 0 {kinds} {where}'
    )
    strings: dict[int, str] = {}
    for start, end, thread, words, key in database.rows(query, values):
        if words is None and key is not None:
            if key not in strings:
                strings |= {key: ""} | database.strings(np.array([key], np.int64))
            words = strings[key]
        if words and thread is not None:
            yield start, end, thread, str(words)


def find_steps(families: list[Family], launches: Ints) -> tuple[tuple[TraceStep, ...], str]:
    """The ranges that look like steps, and how they are known; () where none do.

    Steps follow each other on one thread, and nearly everything launched from the first to the last
    is launched inside of them. Among several such families, a telling name and a number go first,
    then the most launches. `launches` are times in order.
    """
    candidates = [candidate for family in families if (candidate := _candidate(family, launches))]
    if not candidates:
        return (), ""
    best = max(candidates, key=lambda candidate: candidate.score)
    numbers = best.numbers
    if (numbers < 0).any() or len(set(numbers.tolist())) < len(numbers):
        numbers = np.arange(len(numbers))
    steps = tuple(
        TraceStep(number=int(n), start=int(a), end=int(b))
        for n, a, b in zip(numbers, best.start, best.end, strict=True)
    )
    return steps, f"NVTX ranges {best.label!r}, {len(steps)} of them, {best.why}"


class _Candidate(NamedTuple):
    score: tuple[float, int, int]
    label: str
    why: str
    start: Ints
    end: Ints
    numbers: Ints


def _candidate(family: Family, launches: Ints) -> _Candidate | None:
    """The family as a candidate for steps, or None."""
    if len(family.start) < 2:
        return None
    order = np.argsort(family.start, kind="stable")
    start, end = np.array(family.start)[order], np.array(family.end)[order]
    inside = np.searchsorted(launches, end) - np.searchsorted(launches, start)
    between = np.searchsorted(launches, end[-1]) - np.searchsorted(launches, start[0])
    if (start[1:] < end[:-1]).any() or not inside.all():
        return None
    held = int(inside.sum())
    if held < _MIN_LAUNCHES * between or held < _MIN_WHOLE * len(launches):
        return None
    numbers = np.array(family.number)[order]
    rank, why = _looks(family, numbers, inside)
    if not rank:
        return None
    return _Candidate((rank, held, -len(start)), family.label, why, start, end, numbers)


def _looks(family: Family, numbers: Ints, inside: Ints) -> tuple[float, str]:
    """A score for how much the ranges look like steps, and by what; 0 for not at all."""
    name = family.label.lower()
    if _PART.search(name):
        return 0.0, ""
    counted = bool((numbers >= 0).all() and (np.diff(numbers) == 1).all())
    if _NAMED.search(name):
        return (3.0 if counted else 2.0), "by their name" + (" and number" if counted else "")
    if counted and len(numbers) >= 3:
        return 1.5, "by their numbers"
    even = float(inside.std()) <= _EVEN * float(inside.mean())
    if len(numbers) >= _MIN_PLAIN and even:
        return 1.0, "because they repeat with the same launches"
    return 0.0, ""
