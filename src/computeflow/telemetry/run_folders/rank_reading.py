"""Records of a rank's file as columns: `read_rank_file` at once, `RankFollower` while it grows.

Read once, from its beginning to where it ends now; a file that is larger than its share of the memory
is read from there on where the rest fits, and says so. Records with impossible values are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.files.limits import RUN_EVENTS, RUN_HEAD_BYTES, RUN_PHASE_NAMES
from computeflow.recorder.frames import MAGIC, DamagedError, FrameReader, Record
from computeflow.telemetry.opening import open_plain
from computeflow.telemetry.run_folders.arrivals import ArrivalColumns
from computeflow.telemetry.run_folders.phases import (
    EDGE,
    LETTERS,
    PARTS,
    USER,
    Ints,
    gap_kinds,
    named_kind,
    parts_of,
)
from computeflow.telemetry.run_folders.rank_file import (
    Beat,
    MemoryRows,
    Pieces,
    RankFile,
    RankStart,
    RunEvent,
    StepRows,
    fill_holes,
)
from computeflow.telemetry.run_folders.records import numbers, real, text, texts, whole
from computeflow.telemetry.run_folders.spans import Span, flatten

_FLUSHED = 4096
"""Steps that are held as Python values before they become columns."""
_KINDS = {letter: place for place, letter in enumerate(LETTERS)}
_MEMORY_COLUMNS = ("allocated", "reserved", "host")
_MAX_MEMORY_ROWS = 65_536
"""Two days of those of device and host; of longer files every second one is dropped, and again."""
_PAUSES = ("checkpoint", "evaluation")
"""What is kept of the time after the last step."""


@dataclass(slots=True)
class RankColumns:
    """What is kept of a rank while its records are read."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    spans: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    """Row of the step, kind, start, end, lead, began."""
    parts: list[tuple[Any, ...]] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    arrivals: ArrivalColumns = field(default_factory=ArrivalColumns)
    events: list[RunEvent] = field(default_factory=list)
    beats: list[Beat] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    memory_rows: list[tuple[int, ...]] = field(default_factory=list)
    """When, and the figures of `_MEMORY_COLUMNS`."""
    model: Record = field(default_factory=dict)
    dropped: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    ended: str | None = None
    last: int = 0
    invalid: Counter[str] = field(default_factory=Counter)
    end_of_step: int | None = None
    number: int = 0
    """The last step."""
    paused_until: dict[str, int] = field(default_factory=dict)
    """End of the last event, by what it is."""
    start: RankStart | None = None
    ahead: int | None = None
    """How far the optimizer's own count is ahead of the recorder's; it is written at first only."""

    def take(self, record: Record, path: Path) -> None:
        if self.start is None:
            self.start = _start(record, path)
        _TAKERS.get(record["k"] if isinstance(record["k"], str) else "", _unknown)(self, record)
        if len(self.rows) >= _FLUSHED:
            _flush(self)

    def drain(self, path: Path) -> RankFile | None:
        """All that was taken since the last time; None before the first record."""
        if self.start is None:
            return None
        _flush(self)
        file = _drained(path, self.start, self)
        self.parts, self.events, self.beats, self.memory_rows = [], [], [], []
        self.arrivals.parts, self.arrivals.timed = [], True
        self.invalid.clear()
        return file


def read_rank_file(path: Path, most: int) -> RankFile:
    """Read a file; of more than `most` bytes, the head and the last `most`."""
    columns, notes = RankColumns(), list[str]()
    for record in _records(path, most, notes):
        columns.take(record, path)
    file = columns.drain(path)
    if file is None:
        raise InputError(f"{path}: nothing was recorded yet")
    return replace(file, left_out=(*notes, *file.left_out))


class RankFollower:
    """Reads a rank's file as it grows: `read` gives what has come since."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._reader: FrameReader | None = None
        self._columns = RankColumns()
        self.records = 0
        """Records that were read so far."""

    @property
    def start(self) -> RankStart | None:
        """What the process says of itself; None until it has said it."""
        return self._columns.start

    def read(self, most: int) -> RankFile | None:
        """The next records, `most` of them at the most; None where there are none."""
        if self._reader is None:
            self._file = open_plain(self._path)
            self._reader = FrameReader(self._file)
        count = 0
        try:
            for record in self._reader.read():
                self._columns.take(record, self._path)
                count += 1
                if count >= most:
                    break
        except DamagedError as error:
            raise InputError(f"{self._path}: {error}") from None
        self.records += count
        return self._columns.drain(self._path) if count else None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _records(path: Path, most: int, notes: list[str]) -> Iterator[Record]:
    """Records of the file; what cannot be read of it goes to the notes."""
    with open_plain(path) as file:
        size = file.seek(0, 2)
        cut = max(size - most, RUN_HEAD_BYTES) if size > most else 0
        if cut:
            head = FrameReader(_Part(file, 0, cut))  # type: ignore[arg-type]
            yield from _head(path, head)
            notes.append(
                f"{path}: {size >> 20:,} MiB; of the first {cut >> 20:,} only the beginning is read"
            )
        part = _Part(file, cut, None)
        reader = FrameReader(part)  # type: ignore[arg-type]
        try:
            yield from reader.read()
        except DamagedError as error:
            raise InputError(f"{path}: {error}") from None
        except (OSError, RecursionError) as error:
            notes.append(f"{path}: the rest of it cannot be read: {error}")
            return
        damaged = reader.damaged_bytes if not cut else 0  # a cut is never between two records
        left = file.seek(0, 2) - part.position
    if damaged:
        notes.append(f"{path}: {damaged:,} damaged bytes were skipped")
    if left > 0:
        notes.append(
            f"{path}: its last {left:,} bytes are no whole record: still being written, or cut off"
        )


def _head(path: Path, reader: FrameReader) -> Iterator[Record]:
    """What a process says of itself, which stands at the beginning of its file."""
    try:
        for count, record in enumerate(reader.read()):
            if record["k"] in ("start", "model"):
                yield record
            if count > 64:
                return
    except DamagedError as error:
        raise InputError(f"{path}: {error}") from None


class _Part:
    """The end of a file behind the mark that opens one: how a reader begins in the middle."""

    def __init__(self, file: Any, skipped: int, end: int | None) -> None:
        self._file, self._skipped, self._end = file, skipped, end
        self._at = 0
        self.position = 0
        """Where in the file the reader last looked for a record."""

    def seek(self, offset: int) -> None:
        self._at = offset
        if offset >= len(MAGIC):
            self.position = self._place(offset)

    def _place(self, offset: int) -> int:
        return offset if not self._skipped else offset - len(MAGIC) + self._skipped

    def read(self, size: int) -> bytes:
        if self._skipped and self._at < len(MAGIC):
            content = MAGIC[self._at : self._at + size]
        else:
            place = self._place(self._at)
            self._file.seek(place)
            left = size if self._end is None else max(min(size, self._end - place), 0)
            content = self._file.read(left) or b""
        self._at += len(content)
        return bytes(content)


def _start(record: Record, path: Path) -> RankStart:
    epoch = whole(record.get("unix_ns"), high=2**63)
    rank = whole(record.get("rank"), high=10**7)
    if record.get("k") != "start" or epoch is None or rank is None:
        raise InputError(f"{path}: does not begin with the record of a process")
    world = whole(record.get("world"), low=1, high=10**7) or 1
    return RankStart(
        rank=rank,
        world=max(world, rank + 1),
        attempt=whole(record.get("attempt"), high=10**6) or 0,
        host=text(record.get("host")),
        device=text(record.get("device")) or "cpu",
        gpu=text(record.get("gpu")),
        gpu_uuid=text(record.get("gpu_uuid")),
        framework=texts(record.get("framework")),
        versions=texts(record.get("versions")),
        epoch=epoch // 1000,
        began=min(whole(record.get("began_us"), low=-(10**13)) or 0, 0),
        pid=whole(record.get("pid"), high=2**31) or 0,
    )


def _seen(columns: RankColumns, at: int) -> None:
    columns.last = max(columns.last, at)


def _take_step(columns: RankColumns, record: Record) -> None:
    end, length = whole(record.get("t")), whole(record.get("d"))
    number = whole(record.get("n"), low=1)
    before = columns.end_of_step
    if (
        end is None
        or length is None
        or number is None
        or number <= columns.number
        or (before is not None and end <= before)
    ):
        columns.invalid["steps"] += 1
        return
    begin = end - length if before is None else max(end - length, before)
    if end == begin:
        columns.invalid["steps"] += 1
        return
    collected = numbers(record.get("gc")) or [0, 0]
    row = (
        number,
        _own_count(columns, record, number),
        begin,
        end,
        _or(whole(record.get("tok")), -1),
        _or(whole(record.get("smp")), -1),
        bool(record.get("w")),
        _or_nan(real(record.get("loss"))),
        *(collected[:2] if len(collected) > 1 else (0, 0)),
    )
    place = len(columns.rows)
    columns.rows.append(row)
    for span in _spans(columns, record, end - length, begin, end):
        columns.spans.append((place, *span))
    columns.end_of_step, columns.number = end, number
    columns.beats.clear()
    _seen(columns, end)


def _own_count(columns: RankColumns, record: Record, number: int) -> int:
    """The optimizer's own count, counted on from where it was written; -1 before."""
    own = whole(record.get("o"))
    if own is not None:
        columns.ahead = own - number
    return -1 if columns.ahead is None else max(number + columns.ahead, -1)


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _spans(columns: RankColumns, record: Record, zero: int, begin: int, end: int) -> list[Span]:
    """Spans of a step without overlap, in order, on the file's clock and within the step."""
    spans, broken = _listed(columns, record, zero, begin, end)
    flat = flatten(spans) if len(spans) > 1 else spans
    now = flat[-1].end if flat else begin
    more = record.get("more")
    if isinstance(more, dict):  # spans that the record has no room for come behind those it lists
        for letter in LETTERS:
            pair = numbers(more.get(letter)) or []
            length = min(pair[1] if len(pair) > 1 else 0, end - now)
            if length > 0:
                flat = [*flat, Span(_KINDS[letter], now, now + length)]
                now += length
    columns.invalid["spans"] += broken
    if not columns.invalid["spans"]:
        del columns.invalid["spans"]
    return flat


def _listed(
    columns: RankColumns, record: Record, zero: int, begin: int, end: int
) -> tuple[list[Span], int]:
    """Spans as they are listed, and how many are broken."""
    listed, named = record.get("p"), record.get("u")
    listed = listed if isinstance(listed, list) else []
    names = iter(named if isinstance(named, list) else [])
    leads = _leads(record.get("v"))
    spans, broken = [], 0
    for place in range(len(listed) // 3):
        letter, start, length = listed[3 * place : 3 * place + 3]
        kind = _KINDS.get(letter, -1) if isinstance(letter, str) else -1
        low, long = whole(start), whole(length)
        if kind < 0 or low is None or long is None:
            broken += 1
            continue
        if kind == USER:
            kind = _named(columns, next(names, ""))
        first, last = max(zero + low, begin), min(zero + low + long, end)
        if last > first:
            spans.append(Span(kind, first, last, leads.get(place, -1), first))
    return spans, broken


def _leads(listed: Any) -> dict[int, int]:
    pairs = numbers(listed) or []
    return dict(zip(pairs[::2], pairs[1::2], strict=False))


def _named(columns: RankColumns, name: Any) -> int:
    called = text(name)
    if not called or (called not in columns.names and len(columns.names) >= RUN_PHASE_NAMES):
        return USER
    return named_kind(columns.names.setdefault(called, len(columns.names)))


def _take_collectives(columns: RankColumns, record: Record) -> None:
    if not columns.arrivals.take(record):
        columns.invalid["collectives"] += 1


def _take_event(columns: RankColumns, record: Record) -> None:
    at, length = whole(record.get("t")), whole(record.get("d"))
    if at is None:
        columns.invalid["events"] += 1
        return
    _seen(columns, at + (length or 0))
    if len(columns.events) >= RUN_EVENTS:
        columns.invalid["events beyond the first"] += 1
        return
    event = RunEvent(
        what=text(record.get("w")),
        start=at,
        end=at + (length or 0),
        text=text(record.get("text")),
        bytes=whole(record.get("bytes")),
    )
    columns.events.append(event)
    if event.what in _PAUSES:
        columns.paused_until[event.what] = max(columns.paused_until.get(event.what, 0), event.end)


def _take_rest(columns: RankColumns, record: Record) -> None:
    """Saves and evaluations after the last step, as events; saves that are events already are not
    taken again.
    """
    end, length = whole(record.get("t")), whole(record.get("d"))
    if end is None or length is None:
        columns.invalid["rests"] += 1
        return
    begin = max(end - length, columns.end_of_step or 0)
    spans = _spans(columns, record, end - length, begin, max(end, begin))
    kinds = np.array([span.kind for span in spans], np.int64)
    for span, part in zip(spans, parts_of(kinds, tuple(columns.names)), strict=True):
        what = PARTS[part]
        start = max(span.start, columns.paused_until.get(what, 0))
        if what not in _PAUSES or span.end <= start or len(columns.events) >= RUN_EVENTS:
            continue
        columns.events.append(
            RunEvent(what=what, start=start, end=span.end, text="after the last step")
        )
        columns.paused_until[what] = span.end
        _seen(columns, span.end)


def _take_memory(columns: RankColumns, record: Record) -> None:
    at = whole(record.get("t"))
    figures = [whole(record.get(name), high=2**60) for name in _MEMORY_COLUMNS]
    if at is not None and any(each is not None for each in figures):
        columns.memory_rows.append((at, *(-1 if each is None else each for each in figures)))
        if len(columns.memory_rows) >= _MAX_MEMORY_ROWS:
            columns.memory_rows = _thinned(columns.memory_rows)
    for name in ("allocated", "reserved", "peak", "retries", "ooms", "host"):
        value = whole(record.get(name), high=2**60)
        if value is not None:
            columns.memory[name] = max(columns.memory.get(name, 0), value)


def _thinned(rows: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Every second row of those with the device's figures, and of those with the host's."""
    device, host = ([row for row in rows if (row[-1] < 0) == each] for each in (True, False))
    return sorted([*device[1::2], *host[1::2]])


def _take_beat(columns: RankColumns, record: Record) -> None:
    at = whole(record.get("t"))
    if at is None:
        columns.invalid["heart beats"] += 1
        return
    _seen(columns, at)
    if len(columns.beats) >= RUN_EVENTS:
        del columns.beats[1]
    since = at - min(_or(whole(record.get("for")), 0), at)
    columns.beats.append(Beat(at=at, inside=text(record.get("in"), 1), since=since))


def _take_loss(columns: RankColumns, record: Record) -> None:
    """Take what was lost so far: each record has the totals."""
    columns.dropped = max(columns.dropped, _or(whole(record.get("dropped")), 0))
    errors = record.get("errors")
    for place, count in errors.items() if isinstance(errors, dict) else ():
        number = whole(count[0]) if isinstance(count, list) and count else whole(count)
        if len(columns.errors) < RUN_PHASE_NAMES:
            columns.errors[text(place)] = max(columns.errors[text(place)], number or 1)


def _take_end(columns: RankColumns, record: Record) -> None:
    columns.ended = text(record.get("how")) or "ended"


def _take_model(columns: RankColumns, record: Record) -> None:
    """Keep the largest model: a run may have small ones beside it."""
    size = whole(record.get("parameters"), high=2**60) or 0
    if size >= (whole(columns.model.get("parameters"), high=2**60) or 0):
        columns.model = record


def _unknown(columns: RankColumns, record: Record) -> None:
    """Records of later versions are skipped."""


_TAKERS = {
    "s": _take_step,
    "c": _take_collectives,
    "e": _take_event,
    "m": _take_memory,
    "b": _take_beat,
    "x": _take_loss,
    "rest": _take_rest,
    "end": _take_end,
    "model": _take_model,
}


def _flush(columns: RankColumns) -> None:
    """Turn the steps that were taken into columns."""
    if not columns.rows:
        return
    rows = columns.rows
    steps = np.array([row[:7] for row in rows], np.int64).T
    loss = np.array([row[7] for row in rows])
    collected = np.array([row[8:] for row in rows], np.int64).T
    spans = np.array(columns.spans, np.int64).reshape(-1, 6).T
    columns.parts.append((steps, loss, collected, _tiled(steps[2], steps[3], spans), spans))
    columns.rows, columns.spans = [], []


def _tiled(begin: Ints, end: Ints, spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Start, end and kind of pieces that fill the steps: spans, and the gaps around them."""
    step, kind, start, stop = spans[:4]
    named = np.where(kind > EDGE, USER, kind)
    first = np.ones(len(step), bool)
    first[1:] = step[1:] != step[:-1]
    last = np.ones(len(step), bool)
    last[:-1] = first[1:]
    free = np.where(first, begin[step], np.concatenate([[0], stop[:-1]]))
    before = np.where(first, EDGE, np.concatenate([[0], named[:-1]]))
    empty = np.setdiff1d(np.arange(len(begin)), step)
    edge = np.full(len(empty), EDGE)
    starts = np.concatenate([start, free, stop[last], begin[empty]])
    ends = np.concatenate([stop, start, end[step[last]], end[empty]])
    kinds = np.concatenate(
        [
            kind,
            gap_kinds(before, named),
            gap_kinds(named[last], np.full(last.sum(), EDGE)),
            gap_kinds(edge, edge),
        ]
    )
    keep = ends > starts
    order = np.argsort(starts[keep], kind="stable")
    return np.array([starts[keep][order], ends[keep][order], kinds[keep][order]])


def _drained(path: Path, start: RankStart, columns: RankColumns) -> RankFile:
    zero = start.epoch
    none = np.zeros((7, 0), np.int64)
    parts = columns.parts or [
        (none, np.zeros(0), none[:2], none[:3], none[:6]),
    ]
    steps = np.concatenate([part[0] for part in parts], axis=1)
    loss = np.concatenate([part[1] for part in parts])
    collected = np.concatenate([part[2] for part in parts], axis=1)
    spans = np.concatenate([part[4][1:] for part in parts], axis=1)
    led = spans[3] >= 0
    config = columns.model.get("config")
    return RankFile(
        path=str(path),
        start=start,
        steps=StepRows(
            number=steps[0],
            own=steps[1],
            begin=steps[2] + zero,
            end=steps[3] + zero,
            tokens=steps[4],
            samples=steps[5],
            profiled=steps[6].astype(bool),
            loss=loss,
            collections=collected[0],
            collecting=collected[1],
        ),
        pieces=fill_holes(_pieces(np.concatenate([part[3] for part in parts], axis=1), zero)),
        leads=Pieces(
            start=spans[4][led] + zero,
            end=spans[2][led] + spans[3][led] + zero,
            kind=spans[0][led],
        ),
        names=tuple(columns.names),
        arrivals=columns.arrivals.finished(zero),
        events=tuple(
            RunEvent(
                what=event.what,
                start=event.start + zero,
                end=event.end + zero,
                text=event.text,
                bytes=event.bytes,
            )
            for event in columns.events
        ),
        beats=tuple(
            Beat(at=beat.at + zero, inside=beat.inside, since=beat.since + zero)
            for beat in columns.beats
        ),
        memory=dict(columns.memory),
        memory_rows=_memory_rows(columns.memory_rows, zero),
        parameters=whole(columns.model.get("parameters"), low=1),
        config=config if isinstance(config, dict) else {},
        dtype=text(columns.model.get("dtype")),
        dropped=columns.dropped,
        errors=dict(columns.errors),
        ended=columns.ended,
        last=columns.last + zero,
        left_out=_invalid(path, columns.invalid),
    )


def _memory_rows(rows: list[tuple[int, ...]], zero: int) -> MemoryRows:
    at, *figures = np.array(rows, np.int64).reshape(-1, 1 + len(_MEMORY_COLUMNS)).T
    return MemoryRows(at=at + zero, **dict(zip(_MEMORY_COLUMNS, figures, strict=True)))


def _pieces(tiles: NDArray[np.int64], zero: int) -> Pieces:
    start, end, kind = tiles
    return Pieces(start=start + zero, end=end + zero, kind=kind)


def _invalid(path: Path, invalid: Counter[str]) -> tuple[str, ...]:
    if not invalid:
        return ()
    kinds = ", ".join(f"{count:,} {name}" for name, count in invalid.most_common(5))
    return (f"{path}: records with impossible values: {kinds}",)
