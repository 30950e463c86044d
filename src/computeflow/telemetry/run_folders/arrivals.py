"""Arrivals of one rank at its collectives, as the flight recorder saw them: `Arrivals`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.recorder.frames import Record
from computeflow.telemetry.run_folders.phases import Ints
from computeflow.telemetry.run_folders.records import MAX_MICROSECONDS, numbers, text, whole

_MESSAGES = ("send", "recv")
"""Operations between two ranks: they have no last arrival."""
UNKNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Collectives in the order of arrival; times are Unix microseconds."""

    group: Ints
    """Place in `groups`."""
    sequence: Ints
    at: Ints
    """When the rank came: the start on its device where that is known, else the call."""
    end: Ints
    """When the collective ended; `UNKNOWN` where the back end does not time it."""
    bytes: Ints
    every: Ints
    """How many collectives one stands for."""
    groups: tuple[tuple[str, str], ...]
    """Name and operation."""
    members: dict[str, tuple[int, ...]]
    """Ranks of a group, by its name, where they are recorded."""
    timed: bool
    """Whether starts and ends on the device are known of all of them."""

    def __len__(self) -> int:
        return len(self.group)

    def shifted(self, offsets: Ints) -> Arrivals:
        ends = np.where(self.end == UNKNOWN, UNKNOWN, self.end - offsets)
        return replace(self, at=self.at - offsets, end=ends)

    def chosen(self, rows: NDArray[np.bool_]) -> Arrivals:
        return replace(
            self,
            group=self.group[rows],
            sequence=self.sequence[rows],
            at=self.at[rows],
            end=self.end[rows],
            bytes=self.bytes[rows],
            every=self.every[rows],
        )


def join_arrivals(parts: Sequence[Arrivals]) -> Arrivals:
    """Arrivals of one rank that follow each other, as one."""
    groups: dict[tuple[str, str], int] = {}
    places, members = [], dict[str, tuple[int, ...]]()
    for part in parts:
        table = [groups.setdefault(key, len(groups)) for key in part.groups]
        places.append(np.array(table, np.int64)[part.group] if len(part) else part.group)
        members |= part.members
    seen = [part for part in parts if len(part)]
    group = np.concatenate(places)
    at = np.concatenate([part.at for part in parts])
    order = np.argsort(at, kind="stable")
    return Arrivals(
        group=group[order],
        sequence=np.concatenate([part.sequence for part in parts])[order],
        at=at[order],
        end=np.concatenate([part.end for part in parts])[order],
        bytes=np.concatenate([part.bytes for part in parts])[order],
        every=np.concatenate([part.every for part in parts])[order],
        groups=tuple(groups),
        members=members,
        timed=bool(seen) and all(part.timed for part in seen),
    )


@dataclass(slots=True)
class ArrivalColumns:
    """Records of collectives while a file is read."""

    groups: dict[tuple[str, str], int] = field(default_factory=dict)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    parts: list[tuple[Ints, ...]] = field(default_factory=list)
    timed: bool = True

    def take(self, record: Record) -> bool:
        """Take a record; False where it is broken."""
        at = numbers(record.get("a"), low=-MAX_MICROSECONDS)
        every = whole(record.get("every"), low=1, high=10**6) or 1
        sequence = _sequence(record.get("q"), len(at or ()), every)
        if not at or sequence is None:
            return False
        operation = text(record.get("o")).lower()
        if any(word in operation for word in _MESSAGES):
            return True
        count = len(at)
        called = np.cumsum(np.array(at, np.int64))
        if np.abs(np.cumsum(np.array(at, float))).max() > MAX_MICROSECONDS:
            return False
        start, end, timed = _spans(record, called)
        name = text(record.get("g"))
        if members := numbers(record.get("r"), high=10**7):
            self.members[name] = tuple(members)
        key = name, operation
        place = self.groups.setdefault(key, len(self.groups))
        self.timed = self.timed and timed
        self.parts.append(
            (
                np.full(count, place),
                sequence,
                start,
                end,
                _sizes(record, count),
                np.full(count, every),
            )
        )
        return True

    def finished(self, zero: int) -> Arrivals:
        columns = [np.concatenate(part) for part in zip(*self.parts, strict=True)]
        if not columns:
            columns = [np.zeros(0, np.int64)] * 6
        order = np.argsort(columns[2], kind="stable")
        group, sequence, at, end, size, every = (column[order] for column in columns)
        return Arrivals(
            group=group,
            sequence=sequence,
            at=at + zero,
            end=np.where(end == UNKNOWN, UNKNOWN, end + zero),
            bytes=size,
            every=every,
            groups=tuple(self.groups),
            members=dict(self.members),
            timed=self.timed and bool(self.parts),
        )


def _sequence(value: Any, count: int, every: int) -> Ints | None:
    """Sequence numbers: all of them, or the first."""
    listed = numbers(value, high=2**53)
    if listed is not None:
        return np.array(listed, np.int64) if len(listed) == count else None
    first = whole(value, high=2**53)
    return None if first is None else first + every * np.arange(count)


def joined_groups(ranks: Mapping[int, Arrivals]) -> dict[int, Arrivals]:
    """Arrivals by rank, with groups of one name but other members told apart."""
    known = {(name, members) for some in ranks.values() for name, members in some.members.items()}
    joined = {}
    for rank, some in ranks.items():
        names = {
            name: next((m for n, m in sorted(known) if n == name and rank in m), ())
            for name, _ in some.groups
        }
        groups = tuple(
            (f"{name} {','.join(map(str, names[name]))}".strip(), operation)
            for name, operation in some.groups
        )
        joined[rank] = replace(some, groups=groups)
    return joined


def _spans(record: Record, called: Ints) -> tuple[Ints, Ints, bool]:
    """Starts and ends on the device, and whether they are known."""
    listed, count = record.get("e"), len(called)
    pairs = listed if isinstance(listed, list) and len(listed) == count else []
    if pairs and not isinstance(pairs[0], list):
        pairs = []
    kept = [numbers(pair) for pair in pairs]
    if not kept or any(pair is None or len(pair) != 2 for pair in kept):
        return called, np.full(count, UNKNOWN), False
    table: NDArray[np.int64] = np.array(kept, np.int64)
    start = called + table[:, 0]
    return start, np.maximum(called + table[:, 1], start), True


def _sizes(record: Record, count: int) -> Ints:
    size = record.get("z")
    each = numbers(size)
    if each is not None and len(each) == count:
        return np.array(each, np.int64)
    return np.full(count, whole(size) or 0)
