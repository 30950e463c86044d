"""A batch: what an agent tells a collector of one run, or of its node, since the last time.

Steps, pieces, leads and arrivals of all ranks of the batch are columns, one after the other in the
order of `ranks`; what is rare (the start of a process, events, heart beats) stands beside them. Records
of a rank are numbered from 0 in the order of its file: `first` and `records` say which ones these are,
so that a collector takes each of them once, whatever is sent again.

On the wire it is MessagePack, compressed by zlib, behind `MAGIC`, whose last byte is the version.
Nothing in it is a path, and nothing in it is executed. The columns are described in docs/wire.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow import codec
from computeflow.errors import InputError
from computeflow.files.limits import NAME_CHARACTERS, RUN_EVENTS, RUN_PHASE_NAMES
from computeflow.telemetry.run_folders.arrivals import Arrivals
from computeflow.telemetry.run_folders.phases import is_kind, renamed_kinds
from computeflow.telemetry.run_folders.rank_file import (
    Beat,
    Pieces,
    RankFile,
    RankStart,
    RunEvent,
    StepRows,
)

VERSION = 1
MAGIC = b"CFBAT" + bytes([VERSION])
MAX_BODY_BYTES = 8 << 20
"""One batch as it is sent: an hour of steps of eight ranks."""
MAX_BATCH_BYTES = 64 << 20
"""The same, unpacked."""
MAX_RANKS = 1024
MAX_GROUPS = 4096
MAX_READINGS = 20_000
_MAX_MICROS = 2**53
Column = NDArray[Any]
Table = dict[str, Column]

_STEPS = {
    "number": "<i8",
    "own": "<i8",
    "begin": "<i8",
    "end": "<i8",
    "tokens": "<i8",
    "samples": "<i8",
    "profiled": "|b1",
    "loss": "<f8",
    "collections": "<i8",
    "collecting": "<i8",
}
_PIECES = {"length": "<i8", "kind": "<i4"}
_LEADS = {"start": "<i8", "end": "<i8", "kind": "<i4"}
_ARRIVALS = {
    "group": "<i4",
    "sequence": "<i8",
    "at": "<i8",
    "end": "<i8",
    "bytes": "<i8",
    "every": "<i4",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNews:
    """What is rare in the records of a rank; totals so far where they are counts."""

    start: RankStart | None = None
    """Comes with record 0."""
    events: tuple[RunEvent, ...] = ()
    beats: tuple[Beat, ...] = ()
    memory: dict[str, int] = field(default_factory=dict)
    parameters: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    dtype: str = ""
    dropped: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    ended: str | None = None
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRows:
    """One rank of a batch: which records these are, and its rows in each table."""

    rank: int
    attempt: int
    first: int
    """Number of its first record."""
    records: int
    last: int
    """Unix microseconds of its last record."""
    alive: bool | None = None
    """Whether its process is there; None where the agent cannot see it."""
    steps: int = 0
    pieces: int = 0
    leads: int = 0
    arrivals: int = 0
    timed: bool = False
    news: RankNews | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReading:
    """One figure of a node, by the name under which exporters publish it."""

    at: int
    """Unix microseconds."""
    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSignal:
    """Something a node says of itself: an Xid, a link that flapped, a throttle that began."""

    at: int
    what: str
    detail: str = ""
    gpu: str = ""
    """UUID or PCI address; "" where it is of no one GPU."""
    fault: bool = True
    rank: int | None = None
    """The rank of the batch's run that it is about."""


PROCESS_GONE = "training process gone"
"""The signal of a rank whose process is no longer there and did not say that it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    agent: str
    """Stays the same over restarts of an agent."""
    number: int
    """Goes up by one with each batch of a process of the agent."""
    node: str
    sent: int
    """Unix microseconds on the node's clock."""
    run: str = ""
    """"" for a batch of readings alone."""
    about: dict[str, Any] = field(default_factory=dict)
    """Fields of `run.json`, where they changed."""
    ranks: tuple[RankRows, ...] = ()
    groups: tuple[tuple[str, str], ...] = ()
    """Process groups that arrivals refer to: label, which tells members apart, and operation."""
    phases: tuple[str, ...] = ()
    """Names of the user's phases that kinds refer to."""
    steps: Table = field(default_factory=dict)
    pieces: Table = field(default_factory=dict)
    leads: Table = field(default_factory=dict)
    arrivals: Table = field(default_factory=dict)
    readings: tuple[NodeReading, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    """Signals that this node does not give, and why."""
    signals: tuple[NodeSignal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart:
    """Records of one rank as an agent read them."""

    first: int
    records: int
    file: RankFile
    alive: bool | None = None


def make_batch(
    parts: Sequence[RankPart],
    *,
    agent: str,
    number: int,
    node: str,
    sent: int,
    run: str = "",
    about: Mapping[str, Any] | None = None,
    readings: Sequence[NodeReading] = (),
    missing: Mapping[str, str] | None = None,
    signals: Sequence[NodeSignal] = (),
) -> Batch:
    groups: dict[tuple[str, str], int] = {}
    names: dict[str, int] = {}
    arrivals, pieces, leads = [], [], []
    for part in parts:
        file = part.file
        for name in file.names:
            if len(names) < RUN_PHASE_NAMES:
                names.setdefault(name, len(names))
        arrivals.append(_arrival_table(file.arrivals, groups))
        pieces.append(
            {
                "length": file.pieces.end - file.pieces.start,
                "kind": renamed_kinds(file.pieces.kind, file.names, names),
            }
        )
        leads.append(
            {
                "start": file.leads.start,
                "end": file.leads.end,
                "kind": renamed_kinds(file.leads.kind, file.names, names),
            }
        )
    steps = [{name: getattr(part.file.steps, name) for name in _STEPS} for part in parts]
    return Batch(
        agent=agent,
        number=number,
        node=node,
        sent=sent,
        run=run,
        about=dict(about or {}),
        ranks=tuple(_rows(part) for part in parts),
        groups=tuple(groups),
        phases=tuple(names),
        steps=_stacked(steps, _STEPS),
        pieces=_stacked(pieces, _PIECES),
        leads=_stacked(leads, _LEADS),
        arrivals=_stacked(arrivals, _ARRIVALS),
        readings=tuple(readings),
        missing=dict(missing or {}),
        signals=tuple(signals),
    )


def _stacked(tables: Sequence[Table], types: Mapping[str, str]) -> Table:
    if not tables:
        return {}
    return {
        name: np.concatenate([table[name] for table in tables]).astype(kind)
        for name, kind in types.items()
    }


def _arrival_table(arrivals: Arrivals, groups: dict[tuple[str, str], int]) -> Table:
    """Rows of arrivals; a group's label has a checksum of its members where they are known."""
    places = [
        groups.setdefault((_label(name, arrivals.members.get(name)), operation), len(groups))
        for name, operation in arrivals.groups
    ]
    group = np.array(places, np.int64)[arrivals.group] if len(arrivals) else arrivals.group
    return {
        "group": group,
        "sequence": arrivals.sequence,
        "at": arrivals.at,
        "end": arrivals.end,
        "bytes": arrivals.bytes,
        "every": arrivals.every,
    }


def _label(name: str, members: Sequence[int] | None) -> str:
    if not members:
        return name
    return f"{name}#{zlib.crc32(','.join(map(str, members)).encode()):08x}"


def _rows(part: RankPart) -> RankRows:
    file = part.file
    news = RankNews(
        start=file.start if part.first == 0 else None,
        events=file.events,
        beats=file.beats,
        memory=file.memory,
        parameters=file.parameters,
        config=file.config,
        dtype=file.dtype,
        dropped=file.dropped,
        errors=file.errors,
        ended=file.ended,
        left_out=file.left_out,
    )
    return RankRows(
        rank=file.start.rank,
        attempt=file.start.attempt,
        first=part.first,
        records=part.records,
        last=file.last,
        alive=part.alive,
        steps=len(file.steps),
        pieces=len(file.pieces),
        leads=len(file.leads),
        arrivals=len(file.arrivals),
        timed=file.arrivals.timed,
        news=None if news == RankNews() else news,
    )


def pack_batch(batch: Batch) -> bytes:
    return MAGIC + zlib.compress(codec.to_bytes(batch), 1)


def unpack_batch(body: bytes) -> Batch:
    """The batch in a body that anybody may have sent; `InputError` says what is wrong with it."""
    if len(body) > MAX_BODY_BYTES:
        raise InputError(f"a batch of {len(body):,} bytes: at most {MAX_BODY_BYTES:,}")
    if body[:5] != MAGIC[:5]:
        raise InputError("not a batch")
    if body[5:6] != MAGIC[5:]:
        raise InputError(f"a batch of version {body[5:6].hex() or '?'}: this side knows {VERSION}")
    batch = codec.from_bytes(Batch, _inflated(body[6:]), "batch")
    _check(batch)
    return batch


def unpack_known(body: bytes) -> Batch:
    """The batch in a body that was checked when it came."""
    return codec.from_bytes(Batch, _inflated(body[len(MAGIC) :]), "batch")


def _inflated(content: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(content, MAX_BATCH_BYTES)
    except zlib.error as error:
        raise InputError(f"batch: not compressed as it says: {error}") from None
    if not unpacker.eof:
        raise InputError(f"batch: cut off, or larger than {MAX_BATCH_BYTES:,} bytes")
    return data


def _check(batch: Batch) -> None:
    """Refuse what cannot be: columns of other lengths or types, times and places out of bounds."""
    words = [batch.agent, batch.node, batch.run, *batch.phases]
    words += [word for group in batch.groups for word in group]
    if any(len(word) > NAME_CHARACTERS for word in words):
        raise InputError(f"batch: a name of more than {NAME_CHARACTERS} characters")
    if not batch.agent or not batch.node or (batch.ranks and not batch.run):
        raise InputError("batch: the agent, its node or the run of its ranks has no name")
    counts = (len(batch.ranks), len(batch.groups), len(batch.phases), len(batch.readings))
    if any(
        count > most
        for count, most in zip(
            counts, (MAX_RANKS, MAX_GROUPS, RUN_PHASE_NAMES, MAX_READINGS), strict=True
        )
    ):
        raise InputError("batch: more ranks, groups, phases or readings than a batch has")
    _check_table(batch.steps, _STEPS, sum(rows.steps for rows in batch.ranks), "steps")
    _check_table(batch.pieces, _PIECES, sum(rows.pieces for rows in batch.ranks), "pieces")
    _check_table(batch.leads, _LEADS, sum(rows.leads for rows in batch.ranks), "leads")
    _check_table(batch.arrivals, _ARRIVALS, sum(rows.arrivals for rows in batch.ranks), "arrivals")
    for table in (batch.pieces, batch.leads):
        if table and not is_kind(table["kind"], len(batch.phases)).all():
            raise InputError("batch: a piece of no known kind")
    if batch.arrivals and len(batch.arrivals["group"]):
        group = batch.arrivals["group"]
        if group.min() < 0 or group.max() >= len(batch.groups):
            raise InputError("batch: an arrival at no known group")
    _check_times(batch.leads, ("start", "end"), "leads")
    _check_times(batch.arrivals, ("at", "end"), "arrivals")
    for rows in batch.ranks:
        _check_rank(rows)
    _check_steps(batch)


def _check_table(table: Table, types: Mapping[str, str], count: int, name: str) -> None:
    if not table and not count:
        return
    if table.keys() != types.keys():
        raise InputError(f"batch: {name} has other columns than {', '.join(types)}")
    for column, kind in types.items():
        values = table[column]
        if values.ndim != 1 or values.dtype.str != kind or len(values) != count:
            raise InputError(f"batch: {name}.{column} is no column of {count:,} {kind}")


def _check_times(table: Table, columns: Sequence[str], name: str) -> None:
    for column in columns if table else ():
        values = table[column]
        if len(values) and (values.min() < -1 or values.max() > _MAX_MICROS):
            raise InputError(f"batch: {name}.{column} has impossible times")


def _check_rank(rows: RankRows) -> None:
    numbers = (rows.rank, rows.attempt, rows.first, rows.steps, rows.pieces, rows.leads)
    if min(*numbers, rows.arrivals, rows.last) < 0 or max(*numbers, rows.last) > _MAX_MICROS:
        raise InputError("batch: a rank with impossible numbers")
    if not 1 <= rows.records <= _MAX_MICROS or rows.steps > rows.records:
        raise InputError("batch: a rank with other records than it counts")
    if rows.news is not None and (
        len(rows.news.events) > RUN_EVENTS or len(rows.news.beats) > RUN_EVENTS
    ):
        raise InputError("batch: more events than a rank has")


def _check_steps(batch: Batch) -> None:
    """Steps of a rank end one after the other, and its pieces fill no more than they take."""
    steps = np.array([rows.steps for rows in batch.ranks], np.int64)
    pieces = np.array([rows.pieces for rows in batch.ranks], np.int64)
    taken = np.zeros(len(steps))
    if batch.steps and len(batch.steps["begin"]):
        begin, end = batch.steps["begin"], batch.steps["end"]
        rank = np.repeat(np.arange(len(steps)), steps)
        after = (rank[1:] == rank[:-1]) & (begin[1:] < end[:-1])
        if begin.min() < -1 or end.max() > _MAX_MICROS or (end <= begin).any() or after.any():
            raise InputError("batch: steps of a rank overlap, or have impossible times")
        last = np.cumsum(steps)
        some = steps > 0
        taken[some] = end[last[some] - 1] - begin[(last - steps)[some]]
    if batch.pieces and len(batch.pieces["length"]):
        lengths = batch.pieces["length"]
        filled = np.bincount(np.repeat(np.arange(len(pieces)), pieces), lengths, len(pieces))
        if lengths.min() <= 0 or lengths.max() > _MAX_MICROS or (filled != taken)[pieces > 0].any():
            raise InputError("batch: pieces of a rank do not fill its steps")


def rank_files(batch: Batch, starts: Mapping[tuple[int, int], RankStart]) -> list[RankPart]:
    """The ranks of a batch; `starts` has those that came with an earlier one, by rank and attempt."""
    return [rank_part(batch, place, starts) for place in range(len(batch.ranks))]


def rank_part(batch: Batch, place: int, starts: Mapping[tuple[int, int], RankStart]) -> RankPart:
    """One rank of a batch, by its place in it."""
    rows = batch.ranks[place]
    news = rows.news or RankNews()
    start = news.start or starts.get((rows.rank, rows.attempt))
    if start is None:
        raise InputError(f"batch: rank {rows.rank} without its beginning")
    spans = {}
    for name in ("steps", "pieces", "leads", "arrivals"):
        at = sum(getattr(before, name) for before in batch.ranks[:place])
        spans[name] = slice(at, at + getattr(rows, name))
    return RankPart(
        first=rows.first,
        records=rows.records,
        alive=rows.alive,
        file=_rank_file(batch, rows, news, start, spans),
    )


def _rank_file(
    batch: Batch, rows: RankRows, news: RankNews, start: RankStart, spans: Mapping[str, slice]
) -> RankFile:
    steps = StepRows(**_columns(batch.steps, _STEPS, spans["steps"]))
    pieces = _columns(batch.pieces, _PIECES, spans["pieces"])
    began = int(steps.begin[0]) if len(steps) else 0
    ends = began + np.cumsum(pieces["length"])
    return RankFile(
        path=f"{batch.run}: rank {rows.rank}",
        start=start,
        steps=steps,
        pieces=Pieces(start=ends - pieces["length"], end=ends, kind=pieces["kind"]),
        leads=Pieces(**_columns(batch.leads, _LEADS, spans["leads"])),
        names=batch.phases,
        arrivals=Arrivals(
            **_columns(batch.arrivals, _ARRIVALS, spans["arrivals"]),
            groups=batch.groups,
            members={},
            timed=rows.timed,
        ),
        events=news.events,
        beats=news.beats,
        memory=news.memory,
        parameters=news.parameters,
        config=news.config,
        dtype=news.dtype,
        dropped=news.dropped,
        errors=news.errors,
        ended=news.ended,
        last=rows.last,
        left_out=news.left_out,
    )


def _columns(table: Table, types: Mapping[str, str], rows: slice) -> dict[str, Column]:
    """Columns of a rank; whole numbers as 64 bits, which the analysis computes with."""
    if not table:
        return {name: np.zeros(0, _wide(kind)) for name, kind in types.items()}
    return {name: table[name][rows].astype(_wide(kind), copy=False) for name, kind in types.items()}


def _wide(kind: str) -> str:
    return "<i8" if kind == "<i4" else kind
