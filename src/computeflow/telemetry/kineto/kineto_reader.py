"""PyTorch traces to columns: `read_trace`.

Everything that a ledger does not need is counted and dropped, so that memory grows with the
device's events and not with the file.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.files.limits import COLLECTIVES, NAMES, NAMES_CHARACTERS
from computeflow.telemetry.kineto.chunks import FileReading, pieces
from computeflow.telemetry.kineto.kineto_events import Arguments, KinetoEvent, message_details
from computeflow.telemetry.recording_files import (
    NEVER_RECORDED,
    is_xla_trace,
    looks_like_trace,
)
from computeflow.telemetry.traces.event_names import (
    CATEGORIES,
    PIPELINE_STEP,
    QUIET,
    Call,
    EventTable,
    Mark,
    WorkKind,
    call_of,
    mark_of,
    step_number,
    work_of,
)
from computeflow.telemetry.traces.operator_flops import COUNTED, MASKS, mask_size, operator_work
from computeflow.telemetry.traces.trace import (
    Calls,
    DeviceWork,
    HostMessages,
    Ints,
    Marks,
    Products,
    Trace,
    TracedCollective,
    TraceStep,
    distinct,
)

R = TypeVar("R")
_QUIET_MICROSECONDS = 5.0
"""Shorter operators neither wait for a device (a launch alone takes as long) nor hold a data loader
up; reading a value from the host's own memory is among them."""
LONG_MICROSECONDS = 1000.0
"""Shorter Python functions say nothing about a host that stands still."""
MAX_OPERATORS = 4_000_000
"""Operators kept beside a device's work: 30 bytes each, and a recording of gigabytes."""
_SUBMITTED = frozenset({Mark.COLLECTIVE, Mark.TRANSFER})
_HOLE_NS = 600 * 10**9
"""Ten minutes without a single event: the clock has jumped, or two recordings are in one file."""


NEEDS = {
    "compute.clock": "readings of the device's clock",
    "compute.model": "shapes of operators (profile with record_shapes) or --model",
    "compute.recompute": "autograd's operators (profile the host, too)",
    "input": "the data loader's annotation: torch's DataLoader writes it, else "
    "record_function('data_load')",
    "checkpoint": "an annotation of saving: record_function('checkpoint')",
    "evaluation": "an annotation of evaluating: record_function('evaluation')",
}


def recognises(path: Path, head: bytes) -> bool:
    return looks_like_trace(path, head) and not is_xla_trace(head)


def read(path: Path, *, detailed: bool = False) -> Generator[Trace]:
    """The trace of a file of the PyTorch profiler, which holds one rank."""
    yield read_trace(path, detailed=detailed)


def read_trace(path: Path, *, detailed: bool = False) -> Trace:
    """Read one file; `InputError` where it is no trace, and a note in `left_out` where it is
    broken. `detailed`: with the host's operators and long functions, which a replay needs.

    A file that names a device but has no work on it is read again for its operators.
    """
    reading, columns = _read(path, again=False, detailed=detailed)
    if not columns.operators and "device" not in columns.tables:
        reading, columns = _read(path, again=True, detailed=False)
    if not columns.tables and not reading.unreadable:
        raise InputError(
            f"{path}: an empty trace, nothing ran in its {reading.events:,} events: {NEVER_RECORDED}"
        )
    return columns.finish(reading)


def _read(path: Path, *, again: bool, detailed: bool) -> tuple[FileReading, _Columns]:
    reading = FileReading(path)
    columns = _Columns(detailed=detailed)
    try:
        for events in pieces(reading):
            columns.operators = again or detailed or not reading.header.get("deviceProperties")
            columns.add(events)
    except MemoryError:
        raise InputError(f"{path}: an event that does not fit in memory") from None
    return reading, columns


_OTHERS = "(other names)"
_KEPT_CHARACTERS = 4096
_KEPT = 100_000
"""Longer names, and names pushed out by others, are classified again when they return."""


class _Numbers(dict[Any, int]):
    """Numbers keys in the order of first use; beyond the limits all keys share one number."""

    characters = 0
    beyond = 0
    """Lookups of keys that are not kept."""

    def __missing__(self, key: Any) -> int:
        if len(self) >= NAMES or self.characters >= NAMES_CHARACTERS:
            self.beyond += 1
            return self.setdefault(_OTHERS, len(self))
        self[key] = number = len(self)
        self.characters += len(key) if isinstance(key, str) else 0
        return number


class _Known(dict[str, R]):
    """A cache of what a name means, filled on first use."""

    def __init__(self, find: Callable[[str], R]) -> None:
        self._find = find

    def __missing__(self, name: str) -> R:
        value = self._find(name)
        if len(self) >= _KEPT:
            self.clear()
        if len(name) <= _KEPT_CHARACTERS:
            self[name] = value
        return value


class _Collectives(dict[tuple[Any, ...], TracedCollective]):
    """One value for all equal collectives; beyond the limits their names are dropped."""

    characters = 0
    beyond = 0
    """How often a collective's names were dropped."""

    def of(self, arguments: Arguments) -> TracedCollective:
        a = arguments
        elements = max(a.elements_in, a.elements_out)
        names = a.collective, a.group, a.group_doc, bytes(a.group_ranks), a.dtype
        peer = _number(max(a.source, a.target), -1)
        known = self.get((*names, elements, peer))
        if known is not None:
            return known
        if len(self) >= COLLECTIVES or self.characters >= NAMES_CHARACTERS:
            self.beyond += 1
            names = _OTHERS, "", "", b"", ""
        collective = _collective(*names, elements, peer)
        if len(self) < COLLECTIVES:
            self[(*names, elements, peer)] = collective
            self.characters += sum(map(len, names)) + _RANK_BYTES * len(collective.ranks)
        return collective


_RANK_BYTES = 40
"""Memory of one rank of a group that is kept."""

Kind = tuple[Mark, bool, bool, Mark]


def _kind_of(name: str, table: EventTable) -> Kind:
    """The mark of a name, whether its FLOPs count, whether it may be a mask, and its mark if it has
    no other.
    """
    is_operator = table is EventTable.OP
    quiet = QUIET.get(name, Mark.NONE) if is_operator else Mark.NONE
    return (
        mark_of(name, table),
        is_operator and name in COUNTED,
        is_operator and name in MASKS,
        quiet,
    )


@dataclass(slots=True)
class _Columns:
    """Columns that grow by pieces; nothing but arrays of numbers outlives a piece. Until the end,
    times are as written: `start`, and the duration in the place of `end`.
    """

    operators: bool = True
    """Whether the host's operators are kept, as long as no device has shown up."""
    detailed: bool = False
    """Whether they are kept beside a device, too, up to `MAX_OPERATORS`."""
    names: _Numbers = field(default_factory=_Numbers)
    threads: _Numbers = field(default_factory=_Numbers)
    kinds: dict[EventTable, _Known[Kind]] = field(
        default_factory=lambda: {
            table: _Known(partial(_kind_of, table=table)) for table in EventTable
        }
    )
    calls_known: _Known[Call] = field(default_factory=lambda: _Known(call_of))
    works_known: dict[EventTable, _Known[WorkKind]] = field(
        default_factory=lambda: {
            table: _Known(partial(work_of, table=table, collective="")) for table in EventTable
        }
    )
    tables: dict[str, tuple[array[Any], ...]] = field(default_factory=dict)
    collectives: dict[int, TracedCollective] = field(default_factory=dict)
    collectives_known: _Collectives = field(default_factory=_Collectives)
    shapes: dict[tuple[str, bytes, bytes, bytes], Any] = field(default_factory=dict)
    masks: set[int] = field(default_factory=set)
    """Sides of square masks."""
    base: float | None = None
    strange: dict[str, int] = field(default_factory=dict)
    """Events of each table with invalid times."""

    def add(self, events: Iterable[Any]) -> None:
        by_category: defaultdict[str, list[KinetoEvent]] = defaultdict(list)
        for event in events:
            if type(event) is KinetoEvent:
                by_category[event.cat].append(event)
        for category, batch in by_category.items():
            table = CATEGORIES.get(category.lower(), EventTable.NONE)
            if table in (EventTable.GPU, EventTable.COPY, EventTable.MEMSET):
                self._device(batch, table)
            elif table is EventTable.RUNTIME:
                self._calls(batch)
            elif table is not EventTable.NONE:
                self._host(batch, table)

    def _put(self, name: str, events: list[KinetoEvent], *columns: Sequence[float]) -> None:
        if name not in self.tables:
            self.tables[name] = tuple(array(code) for code in _TABLES[name].values())
        times = [event.ts for event in events], [event.dur for event in events]
        for whole, part in zip(self.tables[name], (*times, *columns), strict=True):
            whole.extend(array(whole.typecode, part))

    def _names(self, events: list[KinetoEvent]) -> list[int]:
        ids = self.names
        return [ids[event.name] for event in events]

    def _threads(self, events: list[KinetoEvent]) -> list[int]:
        ids = self.threads
        return [ids[event.tid] for event in events]

    def _device(self, events: list[KinetoEvent], table: EventTable) -> None:
        known = self.works_known[table]
        work = [known[event.name] for event in events]
        all_arguments = [event.args for event in events]
        if table is EventTable.GPU:
            for row, arguments in enumerate(all_arguments):
                if arguments.collective:
                    work[row] = WorkKind.COMM
                    self.collectives[arguments.correlation] = self.collectives_known.of(arguments)
            sizes = [-1] * len(events)
        else:
            sizes = [_number(arguments.bytes, -1, 2**62) for arguments in all_arguments]
        self._put(
            "device",
            events,
            self._names(events),
            _streams(events),
            [arguments.correlation for arguments in all_arguments],
            work,
            sizes,
        )

    def _calls(self, events: list[KinetoEvent]) -> None:
        known = self.calls_known
        numbers = [event.args.correlation for event in events]
        if min(numbers) <= 0:  # calls without a number that launch nothing are not needed
            events = [
                event
                for event in events
                if event.args.correlation > 0 or known[event.name] is not Call.OTHER
            ]
            numbers = [event.args.correlation for event in events]
        calls = [known[event.name] for event in events]
        self._put("calls", events, numbers, self._threads(events), calls)

    def _host(self, events: list[KinetoEvent], table: EventTable) -> None:
        known = self.kinds[table]
        is_operator = table is EventTable.OP
        kept, marks, products = [], [], []
        nothing = Mark.NONE
        for event in events:
            mark, counts, masks, quiet = known[event.name]
            if counts:
                products.append(event)
            elif masks:
                self.masks.add(mask_size(bytes(event.args.dims)))
            if mark is nothing:
                arguments = event.args
                if is_operator and arguments.sequence >= 0 and arguments.forward_thread <= 0:
                    # for operators that autograd records, only reading a value means more
                    mark = quiet if quiet is Mark.READ else Mark.FORWARD_OP
                elif quiet is nothing or event.dur < _QUIET_MICROSECONDS:
                    continue
                else:
                    mark = quiet
            kept.append(event)
            marks.append(mark)
        if kept:
            self._put("marks", kept, self._threads(kept), marks, self._names(kept))
        if products:
            self._products(products)
        self._messages(
            [event for event, mark in zip(kept, marks, strict=True) if mark in _SUBMITTED]
        )
        if table is EventTable.ANNOTATION:
            self._keep(
                "annotations",
                [
                    event
                    for event in events
                    if (event.dur >= LONG_MICROSECONDS or event.name.startswith(PIPELINE_STEP))
                    and known[event.name][0] is nothing
                ],
            )
        if is_operator and self.operators and (self.detailed or "device" not in self.tables):
            self._keep("operators", events)
        if self.detailed and table is EventTable.PYTHON:
            self._keep("functions", [event for event in events if event.dur >= LONG_MICROSECONDS])

    def _messages(self, events: list[KinetoEvent]) -> None:
        if events:
            details = [message_details(event.name, event.args) for event in events]
            self._put(
                "messages",
                events,
                self._threads(events),
                self._names(events),
                *zip(*details, strict=True),
            )

    def _keep(self, name: str, events: list[KinetoEvent]) -> None:
        """Keep host events as they are, as long as there is room for them beside a device's work."""
        if not events or (self.detailed and len(self.tables.get(name, ((),))[0]) > MAX_OPERATORS):
            return
        unmarked = [Mark.NONE] * len(events)
        self._put(name, events, self._threads(events), unmarked, self._names(events))

    def _products(self, events: list[KinetoEvent]) -> None:
        ids, known, work = self.names, self.shapes, []
        for event in events:
            a = event.args
            key = (event.name, bytes(a.dims), bytes(a.types), bytes(a.concrete))
            row = known.get(key)
            if row is None:
                w = operator_work(*key)
                row = ids[w.type], w.flops, w.full, w.elements, w.scores, ids[w.shape]
                if len(known) >= _KEPT:
                    known.clear()
                if sum(map(len, key)) <= _KEPT_CHARACTERS:
                    known[key] = row
            work.append(row)
        self._put(
            "products", events, self._threads(events), self._names(events), *zip(*work, strict=True)
        )

    def finish(self, reading: FileReading) -> Trace:
        left_out = []
        if reading.cut_short:
            left_out.append(f"{reading.path.name}: {reading.cut_short}; what came before is kept")
        if reading.unreadable:
            left_out.append(f"{reading.path.name}: {reading.unreadable:,} unreadable events")
        for what, numbers in (("names", self.names), ("threads", self.threads)):
            if numbers.beyond:
                left_out.append(
                    f"{reading.path.name}: {what} beyond the first {len(numbers) - 1:,}: "
                    f"{numbers.beyond:,} times, all taken as one"
                )
        if dropped := self.collectives_known.beyond:
            left_out.append(
                f"{reading.path.name}: names of collectives beyond the first "
                f"{len(self.collectives_known):,}: {dropped:,} times"
            )
        if "device" in self.tables and not self._is_detailed():
            self.tables.pop("operators", None)
        tables = {name: self._timed(name) for name in _TABLES}
        _used(tables["calls"], tables["device"])
        if strange := self._strange():
            left_out.append(f"{reading.path.name}: {strange:,} events without a valid time")
        keep, note = _whole([table["start"] for table in tables.values()])
        if note:
            left_out.append(f"{reading.path.name}: {note}")
        tables = {name: _in_order(tables.pop(name), keep) for name in _TABLES}
        names = list(self.names)
        marks = Marks(**tables["marks"])
        return Trace(
            path=reading.path,
            base=(self.base or 0.0) + (keep[0] // 1000 if keep else 0),
            header=reading.header,
            names=names,
            device=DeviceWork(**tables["device"]),
            calls=Calls(**tables["calls"]),
            marks=marks,
            products=_counted(Products(**tables["products"]), self.masks),
            collectives=self.collectives,
            operators=Marks(**tables["operators"]),
            functions=Marks(**tables["functions"]),
            annotations=Marks(**tables["annotations"]),
            messages=HostMessages(**tables["messages"]),
            steps=_steps(marks, names),
            events=reading.events,
            left_out=tuple(left_out),
            needs=NEEDS,
            cut_short=reading.cut_short,
        )

    def _is_detailed(self) -> bool:
        """Whether all operators were kept."""
        kept = self.tables.get("operators", ((),))
        return self.detailed and len(kept[0]) <= MAX_OPERATORS

    def _strange(self) -> int:
        """Events with invalid times; operators stand in several tables, so the largest count is
        taken.
        """
        host = max(self.strange.get(name, 0) for name in ("marks", "products", "operators"))
        return self.strange.get("device", 0) + self.strange.get("calls", 0) + host

    def _timed(self, name: str) -> dict[str, NDArray[Any]]:
        """A table with its times in nanoseconds; its raw columns are freed."""
        kinds = _TABLES[name]
        raw = self.tables.pop(name, tuple(array(code) for code in kinds.values()))
        whole = {
            column: np.frombuffer(values, code) if values else np.zeros(0, code)
            for (column, code), values in zip(kinds.items(), raw, strict=True)
        }
        start, length = whole["start"], whole["end"]
        # to the year 2096: two such times and a base in nanoseconds fit into 64 bits
        good = np.isfinite(start) & np.isfinite(length) & (length >= 0) & (np.abs(start) < 4e15)
        good &= length < 4e12
        if self.base is None and good.any():
            # the median: near most others even where the clock has jumped
            middle = int(good.sum()) // 2
            self.base = float(np.floor(np.partition(start[good], middle)[middle]))
        if not good.all():
            self.strange[name] = int((~good).sum())
            whole = {column: values[good] for column, values in whole.items()}
        begin = np.rint((whole["start"] - (self.base or 0.0)) * 1e3).astype(np.int64)
        end = begin + np.rint(whole["end"] * 1e3).astype(np.int64)
        return whole | {"start": begin, "end": end}


def _whole(starts: Sequence[Ints]) -> tuple[tuple[int, int] | None, str]:
    """The interval without a hole that has most events, and a note on what that leaves out."""
    starts = [column for column in starts if len(column)]
    if not starts or max(s.max() for s in starts) - min(s.min() for s in starts) < _HOLE_NS:
        return None, ""
    times = np.sort(np.concatenate(starts))
    holes = np.flatnonzero(np.diff(times) > _HOLE_NS)
    if not len(holes):
        return None, ""
    edges = np.concatenate([[0], holes + 1, [len(times)]])
    sizes = np.diff(edges)
    best = int(sizes.argmax())
    keep = int(times[edges[best]]), int(times[edges[best + 1] - 1])
    lost = len(times) - int(sizes[best])
    return keep, f"the clock jumps; {lost:,} events on the other side of it are left out"


def _in_order(
    table: dict[str, NDArray[Any]], keep: tuple[int, int] | None
) -> dict[str, NDArray[Any]]:
    """Sort a table by start, the longest first. Events that begin outside of `keep` are dropped,
    and its first whole microsecond is time zero.
    """
    if keep is not None:
        start, zero = table["start"], keep[0] // 1000 * 1000
        inside = (start >= keep[0]) & (start <= keep[1])
        table = {column: values[inside] for column, values in table.items()}
        table |= {column: table[column] - zero for column in ("start", "end")}
    start, end = table["start"], table["end"]
    later = (start[1:] < start[:-1]) | ((start[1:] == start[:-1]) & (end[1:] > end[:-1]))
    if later.any():
        order = np.lexsort((-end, start))
        for column in table:  # one at a time, so that the old one is freed
            table[column] = table[column][order]
    return table


def _used(calls: dict[str, NDArray[Any]], device: dict[str, NDArray[Any]]) -> None:
    """Drop calls that neither launched anything nor held the host up."""
    known, keep = np.sort(device["correlation"]), calls["call"] != Call.OTHER
    others = np.flatnonzero(~keep)
    if len(known):
        numbers = calls["correlation"][others]
        at = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        keep[others] = known[at] == numbers
    for column in calls:
        calls[column] = calls[column][keep]


_MARKS = {"start": "d", "end": "d", "thread": "i", "mark": "b", "name": "i"}
_PRODUCTS = {
    "start": "d",
    "end": "d",
    "thread": "i",
    "name": "i",
    "type": "i",
    "flops": "d",
    "full": "d",
    "elements": "d",
    "scores": "q",
    "shape": "i",
}
_TABLES = {
    "device": {
        "start": "d",
        "end": "d",
        "name": "i",
        "stream": "i",
        "correlation": "q",
        "work": "b",
        "bytes": "q",
    },
    "calls": {"start": "d", "end": "d", "correlation": "q", "thread": "i", "call": "b"},
    "marks": _MARKS,
    "products": _PRODUCTS,
    "operators": _MARKS,
    "functions": _MARKS,
    "annotations": _MARKS,
    "messages": {
        "start": "d",
        "end": "d",
        "thread": "i",
        "name": "i",
        "peer": "i",
        "tag": "i",
        "elements": "q",
    },
}
"""Columns and their type codes of `array`."""


def _streams(events: list[KinetoEvent]) -> Sequence[int]:
    streams: list[Any] = [event.args.stream for event in events]
    try:
        numbers = array("i", streams)
        if min(numbers) >= 0:
            return numbers
    except (TypeError, OverflowError):
        pass
    return [_number(event.args.stream, event.tid) for event in events]


def _number(value: int | str, otherwise: int | str, high: int = 2**31) -> int:
    """A stream or size as a number, which traces write as numbers, text and hexadecimals; else -1."""
    for text in (value, otherwise):
        try:
            number = int(text, 0) if isinstance(text, str) else text
        except ValueError:
            continue
        if 0 <= number < high:
            return number
    return -1


def _collective(
    name: str, group: str, group_doc: str, group_ranks: bytes, dtype: str, elements: int, peer: int
) -> TracedCollective:
    text = group_ranks.decode("utf-8", "replace").strip('"')
    parts = (part.strip() for part in text.strip("[]").split(","))
    ranks = [int(part) for part in parts if part.isdecimal() and len(part) < 10]
    return TracedCollective(
        name=name,
        group=group,
        group_doc=group_doc,
        ranks=tuple(ranks[:100_000]),
        elements=elements,
        dtype=dtype,
        peer=peer,
    )


def _steps(marks: Marks, names: list[str]) -> tuple[TraceStep, ...]:
    """The steps, one for each start, the longest."""
    by_start: dict[int, TraceStep] = {}
    for row in np.flatnonzero(marks.mark == Mark.STEP):
        number, start = step_number(names[marks.name[row]]), int(marks.start[row])
        if number is not None:
            by_start.setdefault(
                start, TraceStep(number=number, start=start, end=int(marks.end[row]))
            )
    return tuple(by_start.values())


def _counted(products: Products, masks: set[int]) -> Products:
    """Drop products without FLOPs and those inside another one of their thread; products of masked
    scores count half. The type is that of the innermost, which is computed: autocast casts between.
    """
    keep = products.flops > 0
    kind = products.type.copy()
    for thread in distinct(products.thread):
        rows = np.flatnonzero(keep & (products.thread == thread))
        if len(rows):
            reach = np.maximum.accumulate(products.end[rows])
            inside = np.concatenate([[False], products.start[rows][1:] < reach[:-1]])
            outer = np.flatnonzero(~inside)
            last = np.append(outer[1:], len(rows)) - 1
            kind[rows[outer]] = products.type[rows[last]]
            keep[rows[inside]] = False
    columns = {name: getattr(products, name)[keep] for name in _PRODUCTS} | {"type": kind[keep]}
    masked = np.isin(columns["scores"], np.array(sorted(masks - {0}), np.int64))
    columns["flops"] = np.where(masked, columns["flops"] / 2, columns["flops"])
    return Products(**columns)
