"""What each rank's dump says of each collective and message: pending there, done, or never entered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from computeflow.telemetry.flight.dump import Dump, Group, Op, Status

_Position = Literal["pending", "done", "absent", "unknown"]
_PAUSES = 3.0
_LEAST_PAUSE = 1.0
_CLOCKS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A collective (group and number), or the k-th pending message between two ranks of a group.

    Messages of a pair are matched from the oldest pending one: both ends of a message complete
    together, so what is pending begins with the same message on both.
    """

    group: Group
    number: int
    source: int | None = None
    target: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    dump: Dump
    pending: Mapping[Place, tuple[Op, ...]]
    """In order of record; several where a group of operations was coalesced."""
    front: tuple[Place, ...]
    """The first pending one of every group, in order of record."""
    entered: Mapping[Group, int]
    """The last collective of a group that the program came to."""
    through: Mapping[Group, int]
    """All collectives of the group up to this one are done."""
    synchronised: Mapping[Group, int]
    """The last one that is recorded as done and that nobody ends alone."""

    @property
    def number(self) -> int:
        return self.dump.rank

    def record(self, place: Place) -> int:
        return self.pending[place][0].record


def _of_dump(dump: Dump) -> Rank:
    pending: dict[Place, list[Op]] = {}
    messages: dict[tuple[Group, int | None, int | None], int] = {}
    entered: dict[Group, int] = {}
    waiting: dict[Group, int] = {}
    synchronised: dict[Group, int] = {}
    for op in dump.ops:
        if op.is_message:
            if not op.done:
                pair = (op.group, op.source, op.target)
                place = Place(
                    group=op.group, number=messages.get(pair, 0), source=op.source, target=op.target
                )
                messages[pair] = place.number + 1
                pending[place] = [op]
            continue
        entered[op.group] = max(entered.get(op.group, 0), op.sequence)
        if not op.done:
            pending.setdefault(Place(group=op.group, number=op.sequence), []).append(op)
            waiting[op.group] = min(waiting.get(op.group, op.sequence), op.sequence)
        elif op.synchronises:
            synchronised[op.group] = max(synchronised.get(op.group, 0), op.sequence)
    front: dict[Group, Place] = {}
    for place in pending:
        front.setdefault(place.group, place)
    return Rank(
        dump=dump,
        pending={place: tuple(ops) for place, ops in pending.items()},
        front=tuple(front.values()),
        entered=entered,
        through={g: waiting[g] - 1 if g in waiting else last for g, last in entered.items()},
        synchronised=synchronised,
    )


class Ranks:
    """All ranks that dumped, asked together."""

    def __init__(self, dumps: Sequence[Dump]) -> None:
        self.by_number = {dump.rank: _of_dump(dump) for dump in dumps}
        self._members: dict[Group, set[int]] = {}
        self._ids: dict[Group, set[int]] = {}
        self._synchronised: dict[Group, int] = {}
        mixed: set[Group] = set()
        for rank in self.by_number.values():
            for op in rank.dump.ops:
                if op.group not in self._members:
                    self._members[op.group] = set(op.group.ranks)
                self._members[op.group].add(rank.number)
                if op.is_message:
                    mixed.add(op.group)
                if op.pg_id is not None:
                    self._ids.setdefault(op.group, set()).add(op.pg_id)
            for group, last in rank.synchronised.items():
                self._synchronised[group] = max(self._synchronised.get(group, 0), last)
        for group in mixed:  # the status of a group counts its messages too
            self._ids.pop(group, None)

    @property
    def groups(self) -> list[Group]:
        return list(self._members)

    def members(self, place: Place) -> tuple[int, ...]:
        if place.source is not None and place.target is not None:
            return place.source, place.target
        return tuple(sorted(self._members[place.group]))

    def position(self, number: int, place: Place) -> _Position:
        rank = self.by_number.get(number)
        if rank is None:
            return "unknown"
        if place in rank.pending:
            return "pending"
        if place.source is not None:
            return "absent"
        group = place.group
        if group in rank.entered:
            return "absent" if place.number > rank.entered[group] else "done"
        status = self._status(rank, group)
        return "done" if status is not None and status.completed >= place.number else "absent"

    def away(self, place: Place) -> tuple[int, ...]:
        """Members with a dump that have not entered."""
        return tuple(n for n in self.members(place) if self.position(n, place) == "absent")

    def is_older(self, number: int, group: Group) -> bool:
        """Somebody is through a collective that all must enter, and this rank's dump does not know of
        it: the dump was taken before.
        """
        rank = self.by_number[number]
        last = rank.entered.get(group)
        if last is None:
            status = self._status(rank, group)
            last = status.enqueued if status is not None else None
        return last is not None and last < self._synchronised.get(group, 0)

    def _status(self, rank: Rank, group: Group) -> Status | None:
        """Of a group in which the rank has no entry, under the number that its peers have for it."""
        ids = self._ids.get(group, set())
        return rank.dump.status.get(next(iter(ids))) if len(ids) == 1 else None


def was_moving(dump: Dump) -> bool:
    """The file was written so soon after its last event that nothing can be said to hang: within
    three times the longest pause between its entries, one second at least, and before the timeout.
    A copy has a later time and proves nothing.
    """
    if dump.last_event is None or dump.written is None:
        return False
    limit = max(_LEAST_PAUSE, _PAUSES * dump.longest_pause)
    if dump.timeout is not None:
        limit = min(limit, dump.timeout)
    return -_CLOCKS < dump.written - dump.last_event < limit
