"""One rank's flight-recorder dump, pickle or JSON, as values; nothing in it is executed.

The format is that of `torch/csrc/distributed/c10d/FlightRecorder.hpp` (versions 1.1 to 2.10, that is
torch 2.2 to 2.13; NCCL and its kin, and gloo):

- one dictionary of `version`, `pg_config`, `pg_status` and `entries`; before 1.2 the entries alone;
- `collective_seq_id` and `p2p_seq_id` were one `seq_id` before torch 2.4;
- gloo keeps no events: its entries stay "scheduled", and `retired` says that they are done, or have
  failed. It records no messages, but `op_id` counts them with the collectives. For the others a retired
  entry that is not completed has timed out;
- inside a coalesced group only the entry that ends the group has events: it speaks for all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.errors import InputError
from computeflow.files.limits import (
    FLIGHT_BYTES,
    FLIGHT_ENTRIES,
    FLIGHT_FRAMES,
    FLIGHT_MEMBERS,
    FLIGHT_TENSORS,
    PICKLED_CHARACTERS,
    TENSOR_DIMENSIONS,
    WHOLE,
)
from computeflow.telemetry.flight_recorder.operations import Op, ProcessGroup, State
from computeflow.telemetry.flight_recorder.passages import Passages, passages
from computeflow.telemetry.opening import read_whole
from computeflow.telemetry.pickles import unpickle

_TAIL = 32
"""Last operations that are kept: what ranks did differently just before they stopped is among them."""
_P2P = re.compile(r"(send) (\d+)->(\d+)|(recv) (\d+)<-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Counts kept by the process group itself, messages included."""

    enqueued: int
    completed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    path: str
    rank: int
    version: str
    groups: tuple[ProcessGroup, ...]
    ops: tuple[Op, ...]
    """Operations in order of record: all pending ones, the last ones, and the last of each group."""
    status: Mapping[int, Status]
    """Status by the rank's own number of a process group."""
    written: float | None = None
    """Unix time at which the file was last written; later for a copy."""
    notes: tuple[str, ...] = ()

    last_event: float | None = None
    last_completion: float | None = None
    longest_pause: float = 0.0
    """Longest time between entries, in seconds."""
    timeout: float | None = None
    """The shortest timeout of any entry."""
    first_event: float | None = None
    passages: Passages = field(default_factory=Passages)
    gathered: Mapping[str, int] = field(default_factory=dict)
    """Ranks of a group, by its name, where an all_gather shows their number."""

    @property
    def is_empty(self) -> bool:
        """Whether the recorder was off: it lists no group either."""
        return not self.ops and not self.groups

    @property
    def gloo(self) -> bool:
        return any(op.gloo for op in self.ops)


def read_dump(path: Path) -> Dump:
    """Read a dump; raises `InputError` for anything else."""
    content = read_whole(path, FLIGHT_BYTES, "not read as a dump")
    if content.lstrip()[:1] in (b"{", b"["):
        data = codec.from_json(content, str(path), once=True)
    else:
        data = unpickle(content, str(path))
    return parse(data, path)


def parse(data: Any, path: Path) -> Dump:
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        data = {"version": "1", "entries": data}
    if not isinstance(data, Mapping) or not ({"entries", "pg_config"} & data.keys()):
        raise InputError(f"{path}: no flight-recorder dump: neither entries nor pg_config in it")
    try:
        groups = _groups(data.get("pg_config"))
        ops = _settled([_op(entry, groups) for entry in _entries(data, path)])
        rank, notes = _rank(data, groups, ops, path)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: a flight-recorder dump that cannot be read: {error}") from None
    return Dump(
        path=str(path),
        rank=rank,
        version=str(data.get("version", ""))[:PICKLED_CHARACTERS],
        groups=tuple(groups.values()),
        ops=_kept(ops),
        **_times(ops),
        passages=passages(ops),
        gathered=_gathered(ops),
        status=_statuses(data.get("pg_status")),
        written=_written(path),
        notes=notes,
    )


def _entries(data: Mapping[Any, Any], path: Path) -> Sequence[Mapping[Any, Any]]:
    entries = data.get("entries") or ()
    if not isinstance(entries, Sequence) or not all(isinstance(e, Mapping) for e in entries):
        raise InputError(f"{path}: entries is no list of records")
    if len(entries) > FLIGHT_ENTRIES:
        raise InputError(f"{path}: {len(entries):,} entries; at most {FLIGHT_ENTRIES:,} are read")
    return entries


def _text(value: Any) -> str:
    return value[:PICKLED_CHARACTERS] if isinstance(value, str) else str(_whole(value))


def _whole(value: Any) -> int:
    """A whole number, JSON's strings of digits included."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{type(value).__name__} where a number belongs")
    number = int(value)
    if abs(number) >= WHOLE:
        raise ValueError("a number beyond 64 bits")
    return number


def _count(value: Any) -> int:
    if (number := _whole(value)) < 0:
        raise ValueError(f"{number:,} where a sequence number belongs")
    return number


def _seconds(nanoseconds: Any) -> float | None:
    """Seconds; None for JSON's 0 and pickle's None."""
    return _whole(nanoseconds) / 1e9 if nanoseconds else None


def _groups(config: Any) -> dict[str, ProcessGroup]:
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise ValueError("pg_config is no dictionary")
    groups: dict[str, ProcessGroup] = {}
    left = FLIGHT_MEMBERS
    for key, value in config.items():
        known = value if isinstance(value, Mapping) else {"ranks": value}
        ranks = _ranks(known.get("ranks", ()), left)
        left -= len(ranks) + 1
        name = _text(known.get("name", key))
        groups[name] = ProcessGroup(name=name, ranks=ranks, desc=_text(known.get("desc", "")))
    return groups


@lru_cache(maxsize=4096)
def _interned(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """One tuple shared by all dumps, as comparing a tuple with itself is quick."""
    return ranks


def _ranks(value: Any, most: int) -> tuple[int, ...]:
    listed: Sequence[Any] = ()
    if isinstance(value, str):  # "[0, 1, 2]"
        listed = [part for part in value.strip("[] ").split(",") if part.strip()]
    elif isinstance(value, Mapping | Sequence):
        listed = list(value)
    if len(listed) > most:
        raise ValueError("more members of groups than any job has")
    ranks = tuple(_whole(rank) for rank in listed)
    if any(rank < 0 for rank in ranks):
        raise ValueError("a rank below 0")
    return _interned(ranks)


def _op(entry: Mapping[Any, Any], groups: Mapping[str, ProcessGroup]) -> Op:
    group = _group_of(entry, groups)
    backend, _, name = _text(entry.get("profiling_name", "")).rpartition(":")
    sides = _sides(name, group)
    collective = entry.get("collective_seq_id", entry.get("seq_id", 0))
    message = sides is not None or bool(entry.get("is_p2p"))
    what, source, target = sides or (name, -1 if message else None, None)
    retired = bool(entry.get("retired"))
    done = entry.get("state") == "completed" or (retired and backend == "gloo")
    pending: State = "started" if entry.get("state") == "started" else "scheduled"
    return Op(
        record=_whole(entry.get("record_id", entry.get("id", 0))),
        group=group,
        sequence=_count(entry.get("p2p_seq_id", collective) if message else collective),
        name=what,
        state="completed" if done else pending,
        timed_out=retired and not done,
        source=source,
        target=target,
        sizes=(_sizes(entry.get("input_sizes")), _sizes(entry.get("output_sizes"))),
        dtypes=(_names(entry.get("input_dtypes")), _names(entry.get("output_dtypes"))),
        created=_seconds(entry.get("time_created_ns")),
        completed=_seconds(entry.get("time_discovered_completed_ns")),
        timeout=_whole(entry["timeout_ms"]) / 1e3 if entry.get("timeout_ms") else None,
        pg_id=_whole(entry["pg_id"]) if "pg_id" in entry else None,
        frames=_frames(entry.get("frames")),
        gloo=backend == "gloo",
        messages=_messages(entry) if backend == "gloo" else 0,
    )


def _messages(entry: Mapping[Any, Any]) -> int:
    operations = entry.get("op_id", entry.get("collective_seq_id", 0))
    return max(_count(operations) - _count(entry.get("collective_seq_id", 0)), 0)


def _group_of(entry: Mapping[Any, Any], groups: Mapping[str, ProcessGroup]) -> ProcessGroup:
    """The group of an entry, by name; gloo registers its default group under no name."""
    named = entry.get("process_group", entry.get("pg_name", entry.get("pg_id", "")))
    if isinstance(named, Sequence) and not isinstance(named, str):
        name, desc = (*map(_text, named), "", "")[:2]
    else:
        name, desc = _text(named), ""
    group = groups.get(name)
    if group is None and (desc == "default_pg" or len(groups) == 1):
        group = groups.get("") or (next(iter(groups.values())) if len(groups) == 1 else None)
    if group is None:
        return ProcessGroup(name=name, ranks=(), desc=desc)
    return replace(group, name=name, desc=desc if desc != "undefined" else group.desc)


def _sides(name: str, group: ProcessGroup) -> tuple[str, int, int] | None:
    """Kind, sender and receiver of a message, in global ranks."""
    match = _P2P.fullmatch(name)
    if match is None:
        return None
    if match[1]:
        what, source, target = "send", int(match[2]), int(match[3])
    else:
        what, source, target = "recv", int(match[6]), int(match[5])
    if group.ranks:
        if max(source, target) >= len(group.ranks):
            raise ValueError(f"{name!r} in a group of {len(group.ranks)}")
        source, target = group.ranks[source], group.ranks[target]
    return what, source, target


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    shapes = value or ()
    if not isinstance(shapes, Sequence) or len(shapes) > FLIGHT_TENSORS:
        raise ValueError("sizes that are no list of shapes")
    if any(not isinstance(shape, Sequence) or len(shape) > TENSOR_DIMENSIONS for shape in shapes):
        raise ValueError("a shape of more dimensions than any tensor")
    return tuple(tuple(_whole(n) for n in shape) for shape in shapes)


def _names(value: Any) -> tuple[str, ...]:
    names = value or ()
    if not isinstance(names, Sequence) or len(names) > FLIGHT_TENSORS:
        raise ValueError("types that are no list of names")
    return tuple(_text(name) for name in names)


def _frames(value: Any) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return ()
    return tuple(
        f"{_text(f.get('name', '?'))} ({_text(f.get('filename', '?'))}:{_text(f.get('line', 0))})"
        for f in value[:FLIGHT_FRAMES]
        if isinstance(f, Mapping)
    )


def _settled(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Operations in order, those of a coalesced group with the state of the entry that ends it. One
    whose end is not in the dump is done: a dump of active operations leaves completed ends out.
    """
    ends = {_key(op): op for op in ops if "coalesced" in op.name}
    groups = {key[:2] for key in ends}

    def settled(op: Op) -> Op:
        key = _key(op)
        end = ends.get(key)
        if end is not None:
            return replace(op, state=end.state, timed_out=end.timed_out, completed=end.completed)
        return replace(op, state="completed") if op.is_message and key[:2] in groups else op

    kept = sorted((op for op in ops if op.name != "coalesced"), key=lambda op: op.record)
    return tuple(op for op in map(settled, kept) if op.source != -1)


def _kept(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Pending operations, the completed ones that show how far each group is, and the last ones."""
    kept: dict[tuple[object, ...], Op] = {}
    for op in ops:
        key: tuple[object, ...] = (op.record, "pending")
        if op.done:
            key = (op.group, op.is_message, op.synchronises)
            known = kept.get(key)
            if known is not None and known.sequence > op.sequence:
                continue
        kept[key] = op
    kept |= {(op.record, "pending"): op for op in ops[-_TAIL:]}
    return tuple(sorted(set(kept.values()), key=lambda op: op.record))


def _times(ops: Sequence[Op]) -> dict[str, Any]:
    created = sorted(op.created for op in ops if op.created is not None)
    completed = [op.completed for op in ops if op.completed is not None]
    return {
        "first_event": created[0] if created else None,
        "last_event": max([*created[-1:], *completed], default=None),
        "last_completion": max(completed, default=None),
        "longest_pause": max((b - a for a, b in pairwise(created)), default=0.0),
        "timeout": min((op.timeout for op in ops if op.timeout), default=None),
    }


def _gathered(ops: Sequence[Op]) -> dict[str, int]:
    """Number of ranks by group: an all_gather returns as many tensors as there are ranks."""
    found: dict[str, int] = {}
    for op in ops:
        if op.name in ("all_gather", "_allgather_base", "_all_gather_base"):
            part, whole = (sum(map(math.prod, shapes)) for shapes in op.sizes)
            if part and whole and whole % part == 0:
                found[op.group.name] = whole // part
    return found


def _key(op: Op) -> tuple[ProcessGroup, bool, int]:
    return op.group, op.is_message, op.sequence


def _statuses(value: Any) -> dict[int, Status]:
    """Status by group; one that cannot be read is left out, as entries hold the same."""
    statuses = {}
    for key, status in value.items() if isinstance(value, Mapping) else ():
        try:
            statuses[_whole(key)] = Status(
                enqueued=_whole(status["last_enqueued_collective"]),
                completed=_whole(status["last_completed_collective"]),
            )
        except (TypeError, ValueError, KeyError, OverflowError):
            continue
    return statuses


_IN_NAMES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"rank[_\-.]?(\d+)",
        r"(?:^|[_\-.])r(\d+)(?=$|[_\-.])",
        r"(?<!\d)(\d+)(?=\D*$)",
    )
)


def _rank(
    data: Mapping[Any, Any], groups: Mapping[str, ProcessGroup], ops: Sequence[Op], path: Path
) -> tuple[int, tuple[str, ...]]:
    """The rank: the one member that all groups of its dump have in common, or the end of its own
    messages; else from the name of the file. And notes.
    """
    if "rank" in data:
        return _whole(data["rank"]), ()
    rank, named = _rank_in_content(groups, ops), _rank_in_name(path)
    if rank is not None:
        agree = named in (None, rank)
        note = f"{path}: the name says rank {named}, the content {rank}"
        return rank, () if agree else (note,)
    if named is None:
        raise InputError(f"{path}: the rank is neither in the dump nor in the name of the file")
    return named, ()


def _rank_in_content(groups: Mapping[str, ProcessGroup], ops: Sequence[Op]) -> int | None:
    own = _only({op.source if op.name == "send" else op.target for op in ops if op.is_message})
    members = [set(group.ranks) for group in groups.values() if group.ranks]
    common = set.intersection(*members) if members else set()
    return _only(common) if own is None else own


def _only(ranks: Collection[int | None]) -> int | None:
    return next(iter(ranks)) if len(ranks) == 1 else None


def _rank_in_name(path: Path) -> int | None:
    name = path.name
    for ending in (".gz", ".json", ".pkl", ".pickle"):
        name = name.removesuffix(ending)
    for pattern in _IN_NAMES:
        match = pattern.search(name)
        if match and len(match[1]) < 8:
            return int(match[1])
    return None


def _written(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
