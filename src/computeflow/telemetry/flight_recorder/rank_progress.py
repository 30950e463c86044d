"""The state of each collective and message on each rank: pending, done, or never entered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from computeflow.telemetry.flight_recorder.dump import Dump, Status
from computeflow.telemetry.flight_recorder.operations import Op, ProcessGroup

_Position = Literal["pending", "done", "absent", "unknown"]
_PAUSES = 3.0
_MIN_PAUSE = 1.0
_CLOCKS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPoint:
    """A collective (group and number), or the k-th pending message between two ranks of a group.

    Messages of a pair are matched from the oldest pending one: both ends of a message complete
    together, so what is pending begins with the same message on both.
    """

    group: ProcessGroup
    number: int
    source: int | None = None
    target: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    dump: Dump
    pending: Mapping[PendingPoint, tuple[Op, ...]]
    """Pending operations in order of record; several at a place if they were coalesced."""
    front: tuple[PendingPoint, ...]
    """The first pending place of every group, in order of record."""
    entered: Mapping[ProcessGroup, int]
    """The last collective of a group that the program came to."""
    through: Mapping[ProcessGroup, int]
    """All collectives of the group up to this one are done."""
    synchronised: Mapping[ProcessGroup, int]
    """The last collective recorded as done that no rank can complete alone."""

    @property
    def number(self) -> int:
        return self.dump.rank

    def record(self, place: PendingPoint) -> int:
        return self.pending[place][0].record


def _rank_of(dump: Dump) -> Rank:
    pending: dict[PendingPoint, list[Op]] = {}
    messages: dict[tuple[ProcessGroup, int | None, int | None], int] = {}
    entered: dict[ProcessGroup, int] = {}
    waiting: dict[ProcessGroup, int] = {}
    synchronised: dict[ProcessGroup, int] = {}
    for op in dump.ops:
        if op.is_message:
            if not op.done:
                pair = (op.group, op.source, op.target)
                place = PendingPoint(
                    group=op.group, number=messages.get(pair, 0), source=op.source, target=op.target
                )
                messages[pair] = place.number + 1
                pending[place] = [op]
            continue
        entered[op.group] = max(entered.get(op.group, 0), op.sequence)
        if not op.done:
            pending.setdefault(PendingPoint(group=op.group, number=op.sequence), []).append(op)
            waiting[op.group] = min(waiting.get(op.group, op.sequence), op.sequence)
        elif op.synchronises:
            synchronised[op.group] = max(synchronised.get(op.group, 0), op.sequence)
    front: dict[ProcessGroup, PendingPoint] = {}
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


class DumpedRanks:
    """All ranks that have a dump."""

    def __init__(self, dumps: Sequence[Dump]) -> None:
        self.by_number = {dump.rank: _rank_of(dump) for dump in dumps}
        self._members: dict[ProcessGroup, set[int]] = {}
        self._ids: dict[ProcessGroup, set[int]] = {}
        self._synchronised: dict[ProcessGroup, int] = {}
        mixed: set[ProcessGroup] = set()
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
    def groups(self) -> list[ProcessGroup]:
        return list(self._members)

    def members(self, place: PendingPoint) -> tuple[int, ...]:
        if place.source is not None and place.target is not None:
            return place.source, place.target
        return tuple(sorted(self._members[place.group]))

    def position(self, number: int, place: PendingPoint) -> _Position:
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

    def away(self, place: PendingPoint) -> tuple[int, ...]:
        """Members with a dump that have not entered the operation."""
        return tuple(n for n in self.members(place) if self.position(n, place) == "absent")

    def is_older(self, number: int, group: ProcessGroup) -> bool:
        """Whether a rank's dump was taken before others': it lacks a collective that all must enter and
        that some have completed.
        """
        rank = self.by_number[number]
        last = rank.entered.get(group)
        if last is None:
            status = self._status(rank, group)
            last = status.enqueued if status is not None else None
        return last is not None and last < self._synchronised.get(group, 0)

    def _status(self, rank: Rank, group: ProcessGroup) -> Status | None:
        """Status of a group in which the rank has no entry, by the number its peers have for it."""
        ids = self._ids.get(group, set())
        return rank.dump.status.get(next(iter(ids))) if len(ids) == 1 else None


def was_moving(dump: Dump) -> bool:
    """Whether a dump was written so soon after its last event that the rank may not hang: within
    three times the longest pause between its entries, one second at least, and before the timeout.
    A copy has a later time and proves nothing.
    """
    if dump.last_event is None or dump.written is None:
        return False
    limit = max(_MIN_PAUSE, _PAUSES * dump.longest_pause)
    if dump.timeout is not None:
        limit = min(limit, dump.timeout)
    return -_CLOCKS < dump.written - dump.last_event < limit
