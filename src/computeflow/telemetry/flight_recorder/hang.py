"""The ranks that hold a job up: those that others wait for and that wait for nobody.

A pending collective waits for every member that has not entered it, and for every member that
entered it but has an older operation pending; such a rank waits in turn for what is pending on it.
Followed to their ends, these waits lead to

- a rank that is in no collective although others are: it *never arrived* (stuck in the host's code,
  or dead);
- a rank on which collectives are pending that its peers have completed: its device, or the thread
  that watches it, has *stalled*, and what else it has pending says nothing;
- operations of one number that *disagree* in kind, size or type;
- a cycle: a *deadlock*, of messages or of collectives entered in different orders. Where most ranks
  of the operations on it agree where the program is, the one that does not is *out of order*;
- a rank that left *no dump*;
- a collective that all have entered and none has completed. A running job looks like this at any
  moment, so it is a hang only where something has timed out.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Literal

from computeflow.telemetry.flight_recorder.dump import Dump, Op
from computeflow.telemetry.flight_recorder.rank_progress import (
    DumpedRanks,
    PendingPoint,
    was_moving,
)

Why = Literal[
    "never arrived",
    "stalled",
    "disagrees",
    "out of order",
    "deadlock",
    "no dump",
    "not started",
    "stuck",
]
_UNIFORM = ("all_reduce", "allreduce", "all_gather", "reduce_scatter", "broadcast", "allgather")
_RAGGED = ("_v", "coalesced")
_MIN_LAG = 2
"""Dumps are not taken at one instant: one collective may have completed in between."""
_MAX_PLACES = 50
Node = PendingPoint | int
"""A place, or the number of a rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    rank: int
    why: Why
    where: str
    """The operation that is held up."""
    waiting: tuple[int, ...]
    """Ranks that have entered the operation."""
    last_seen: float | None = None
    """Unix seconds of the rank's last event."""
    frames: tuple[str, ...] = ()
    """Stack of the rank's pending operation, or of its last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    culprits: tuple[Culprit, ...]
    in_flight: tuple[Culprit, ...]
    """States that a running job has too: reported, but no finding."""
    waiting: tuple[int, ...]
    """All ranks with a pending operation."""
    timed_out: tuple[int, ...]
    older: tuple[int, ...]
    """Ranks whose dump was taken before those of the others."""
    moving: tuple[int, ...]
    """Ranks that would be culprits, but they or those who wait for them had just moved."""


def find_culprits(dumps: Sequence[Dump]) -> Standstill:
    search = _Search(DumpedRanks(dumps))
    for rank in search.ranks.by_number.values():
        for place in rank.front:
            search.visit(place)
    search.follow()
    search.close_cycles()
    return search.result()


class _Search:
    def __init__(self, ranks: DumpedRanks) -> None:
        self.ranks = ranks
        self.edges: dict[Node, list[Node]] = {}
        self.waited_at: dict[int, list[PendingPoint]] = {}
        """The places at which each rank is waited for."""
        self.causes: dict[tuple[int, Why], PendingPoint | None] = {}
        """The operation of each culprit; None for the place at which the rank is waited for."""
        self.older: set[int] = set()
        self.moving = {n for n, rank in ranks.by_number.items() if was_moving(rank.dump)}
        self.stalled = {n: first for n in ranks.by_number if (first := self._first_stalled(n))}
        self._left: list[Node] = []

    def visit(self, node: Node) -> None:
        if node not in self.edges:
            self.edges[node] = []
            self._left.append(node)

    def follow(self) -> None:
        while self._left:
            node = self._left.pop()
            after = self._of_rank(node) if isinstance(node, int) else self._of_place(node)
            self.edges[node] = after
            for other in after:
                self.visit(other)

    def _of_rank(self, number: int) -> list[Node]:
        rank = self.ranks.by_number.get(number)
        if rank is None:
            self.causes[number, "no dump"] = None
            return []
        if number in self.stalled:
            self.causes[number, "stalled"] = self.stalled[number]
            return []
        if not rank.front:
            self.causes[number, "never arrived"] = None
        return list(rank.front)

    def _of_place(self, place: PendingPoint) -> list[Node]:
        here = self._here(place)
        if not here or self._disagree(place, here):
            return []
        absent = self._at(place, "absent")
        after = self._wait_for(absent, place)
        for number in here:
            rank = self.ranks.by_number[number]
            record = rank.record(place)
            after += [other for other in rank.front if rank.record(other) < record]
        if not after and not absent and len(here) == len(self._inside(place)):
            after += self._at_the_front(place, here)
        return after

    def _here(self, place: PendingPoint) -> list[int]:
        """Ranks that wait in it without being stalled; stalled ones are recorded as culprits."""
        inside = self._inside(place)
        self.causes |= {(n, "stalled"): self.stalled[n] for n in inside if n in self.stalled}
        return [number for number in inside if number not in self.stalled]

    def _wait_for(self, numbers: Sequence[int], place: PendingPoint) -> list[Node]:
        """Ranks that are missing in it; a dump taken before the others' says nothing."""
        older = {n for n in numbers if self.ranks.is_older(n, place.group)}
        self.older |= older
        missed = [number for number in numbers if number not in older]
        for number in missed:
            self.waited_at.setdefault(number, []).append(place)
        return list(missed)

    def _first_stalled(self, number: int) -> PendingPoint | None:
        """The first collective pending on a rank that others have completed, if there are enough."""
        passed = [
            place
            for place in self.ranks.by_number[number].pending
            if place.source is None
            and any(self.ranks.position(n, place) == "done" for n in self.ranks.members(place))
        ]
        return passed[0] if len(passed) >= _MIN_LAG else None

    def _at_the_front(self, place: PendingPoint, here: list[int]) -> list[Node]:
        """Judge a place where no rank has anything older pending and no rank is missing."""
        members = self.ranks.members(place)
        unseen = [number for number in members if number not in self.ranks.by_number]
        if unseen and not self._at(place, "done"):
            for number in unseen:
                self.waited_at.setdefault(number, []).append(place)
            return list(unseen)
        late = [n for n in here if self.ranks.by_number[n].pending[place][0].state == "scheduled"]
        some = 0 < len(late) < len(here)
        why: Why = "not started" if some else "stuck"
        self.causes |= {(number, why): place for number in (late if some else here)}
        return []

    def _disagree(self, place: PendingPoint, here: list[int]) -> bool:
        """Whether operations differ; records the minority, or all ranks without a majority."""
        signed = {
            number: tuple(_signature(op) for op in self.ranks.by_number[number].pending[place])
            for number in here
        }
        counts = Counter(signed.values())
        if len(counts) < 2:
            return False
        usual, count = counts.most_common(1)[0]
        for number, signature in signed.items():
            if signature != usual or 2 * count <= len(signed):
                self.causes[number, "disagrees"] = place
        return True

    def close_cycles(self) -> None:
        """Record each cycle that nothing leads out of as a deadlock of its ranks."""
        for cycle in _cycles(self.edges):
            if len(cycle) > 1 and self._is_closed(cycle):
                places = [node for node in cycle if isinstance(node, PendingPoint)]
                ranks = {node for node in cycle if isinstance(node, int)}
                ranks = ranks or {n for place in places for n in self._inside(place)}
                odd = self._odd(places[:_MAX_PLACES], ranks)
                why: Why = "deadlock" if len(odd) == len(ranks) else "out of order"
                self.causes |= {(number, why): places[0] for number in odd}

    def _is_closed(self, cycle: Sequence[Node]) -> bool:
        inside = set(cycle)
        return all(inside.issuperset(self.edges[node]) for node in cycle)

    def _odd(self, places: Sequence[PendingPoint], ranks: set[int]) -> list[int]:
        """The ranks of a cycle that deviate most: absent where most members of an operation are,
        present where most are not, or in an order that most do not keep. The fewer share a
        deviation, the more it weighs.
        """
        weights: defaultdict[int, Fraction] = defaultdict(Fraction)
        splits = []
        for place in places:
            inside = self._inside(place)
            splits.append((inside, [n for n in self.ranks.members(place) if n not in inside]))
        for first_place, second_place in combinations(places, 2):
            both = set(self._inside(first_place)) & set(self._inside(second_place))
            first = {n for n in both if self._comes_first(n, first_place, second_place)}
            splits.append((list(first), list(both - first)))
        for alone in map(_fewer, splits):
            for number in alone:
                weights[number] += Fraction(1, len(alone))
        most = max(weights[number] for number in ranks)
        return [number for number in ranks if weights[number] == most]

    def _comes_first(self, number: int, one: PendingPoint, other: PendingPoint) -> bool:
        record = self.ranks.by_number[number].record
        return record(one) < record(other)

    def _inside(self, place: PendingPoint) -> list[int]:
        return self._at(place, "pending")

    def _at(self, place: PendingPoint, position: str) -> list[int]:
        members = self.ranks.members(place)
        return [n for n in members if self.ranks.position(n, place) == position]

    def _where(self, number: int) -> PendingPoint:
        """The place at which the most ranks wait for a rank; of several, the oldest."""

        def order(place: PendingPoint) -> tuple[int, float]:
            inside = self._inside(place)
            ops = [self.ranks.by_number[n].pending[place][0] for n in inside]
            return -len(inside), min(op.created or math.inf for op in ops)

        return min(self.waited_at[number], key=order)

    def result(self) -> Standstill:
        ranks = self.ranks.by_number
        timed_out = tuple(
            sorted(n for n, rank in ranks.items() if any(op.timed_out for op in rank.dump.ops))
        )
        culprits, in_flight, moving = self._judge()
        if timed_out and not culprits:
            culprits, in_flight = in_flight, []
        elif not timed_out and not self._many_wait_for_few(culprits):
            culprits, in_flight = [], [*culprits, *in_flight]
        return Standstill(
            culprits=tuple(culprits),
            in_flight=tuple(in_flight),
            waiting=tuple(sorted(n for n, rank in ranks.items() if rank.pending)),
            timed_out=timed_out,
            older=tuple(sorted(self.older)),
            moving=tuple(sorted(moving)),
        )

    def _judge(self) -> tuple[list[Culprit], list[Culprit], set[int]]:
        """Ranks that hang, ranks that may only be under way, and ranks that had just moved."""
        culprits, in_flight, moving = [], [], set()
        for (number, why), place in sorted(self.causes.items(), key=lambda item: item[0]):
            culprit = self._culprit(number, why, place or self._where(number))
            if why in ("stuck", "not started"):
                in_flight.append(culprit)
            elif why != "disagrees" and any(n in self.moving for n in (number, *culprit.waiting)):
                moving.add(number)
            else:
                culprits.append(culprit)
        return culprits, in_flight, moving

    def _many_wait_for_few(self, culprits: Sequence[Culprit]) -> bool:
        """Whether many ranks wait for few; else some ranks of a running job are just ahead."""
        idle = {n for n, rank in self.ranks.by_number.items() if not rank.pending}
        missed = {culprit.rank for culprit in culprits if culprit.why == "never arrived"}
        waiting = len(self.ranks.by_number) - len(idle)
        return len(missed) <= waiting and len(idle - missed) <= waiting

    def _culprit(self, number: int, why: Why, place: PendingPoint) -> Culprit:
        inside = self._inside(place)
        op = self.ranks.by_number[inside[0]].pending[place][0]
        rank = self.ranks.by_number.get(number)
        last: Op | None = None
        if rank is not None:
            first = rank.front[:1]
            ops = rank.pending[first[0]] if first else rank.dump.ops[-1:]
            last = ops[0] if ops else None
        return Culprit(
            rank=number,
            why=why,
            where=op.label,
            waiting=tuple(n for n in inside if n != number),
            last_seen=rank.dump.last_event if rank is not None else None,
            frames=last.frames if last is not None else (),
        )


def _fewer(split: tuple[list[int], list[int]]) -> list[int]:
    """The smaller part; both if they are equal, none if one is empty."""
    some, others = split
    if not some or not others:
        return []
    return some + others if len(some) == len(others) else min(some, others, key=len)


def _signature(op: Op) -> tuple[object, ...]:
    """Properties that must be equal on all ranks; for a message, its size and type."""
    if op.is_message:
        side = 0 if op.name == "send" else 1
        return (_elements(op.sizes[side]), op.dtypes[side])
    uniform = any(word in op.name for word in _UNIFORM)
    if not uniform or any(word in op.name for word in _RAGGED):
        return (op.name,)
    return (op.name, *map(_elements, op.sizes), *op.dtypes)


def _elements(shapes: Sequence[Sequence[int]]) -> int:
    return sum(math.prod(shape) for shape in shapes)


def _by_end(edges: dict[Node, list[Node]]) -> list[Node]:
    """Nodes in the order in which a depth-first search leaves them."""
    order: list[Node] = []
    seen: set[Node] = set()
    for start in edges:
        stack: list[tuple[Node, int]] = [] if start in seen else [(start, 0)]
        seen.add(start)
        while stack:
            node, at = stack.pop()
            if at == len(edges[node]):
                order.append(node)
                continue
            stack.append((node, at + 1))
            if (other := edges[node][at]) not in seen:
                seen.add(other)
                stack.append((other, 0))
    return order


def _cycles(edges: dict[Node, list[Node]]) -> list[list[Node]]:
    """Strongly connected components (Kosaraju), without recursion."""
    back: dict[Node, list[Node]] = {node: [] for node in edges}
    for node, after in edges.items():
        for other in after:
            back[other].append(node)
    components: list[list[Node]] = []
    seen: set[Node] = set()
    for start in reversed(_by_end(edges)):
        if start in seen:
            continue
        seen.add(start)
        part, left = [], [start]
        while left:
            node = left.pop()
            part.append(node)
            fresh = [other for other in back[node] if other not in seen]
            seen.update(fresh)
            left += fresh
        components.append(part)
    return components
