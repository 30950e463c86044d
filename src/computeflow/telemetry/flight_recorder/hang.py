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

Where these ends do not single out a rank (it may wait for a message that was not recorded, two ranks
differ and no third shows which is right), they are suspects, and `untold` says why no rank is named.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Literal

from computeflow.telemetry.flight_recorder.cycles import cycles
from computeflow.telemetry.flight_recorder.dump import Dump
from computeflow.telemetry.flight_recorder.gloo import has_messages, may_await_message
from computeflow.telemetry.flight_recorder.operations import Op
from computeflow.telemetry.flight_recorder.rank_progress import (
    DumpedRanks,
    PendingPoint,
    was_moving,
)
from computeflow.telemetry.flight_recorder.signatures import is_ragged, signature
from computeflow.telemetry.flight_recorder.stacks import own_frame

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
_MIN_LAG = 2
"""Dumps are not taken at one instant: one collective may have completed in between."""
_MOVING = ("never arrived", "stalled", "out of order", "deadlock")
"""States that a running job passes through; a rank that leaves no dump is not one of them."""
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
    awaited: tuple[str, ...] = ()
    """Stack of a rank that waits in the operation."""

    @property
    def lines(self) -> str:
        """The user's own lines, whole: where the rank was last, and where it is waited for."""
        own, awaited = own_frame(self.frames), own_frame(self.awaited)
        outside = self.why in ("never arrived", "no dump")
        parts = [f"{'last seen' if outside else 'waits'} at {own}"] if own else []
        return "; ".join(parts + ([f"the others wait at {awaited}"] if awaited else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    culprits: tuple[Culprit, ...]
    suspects: tuple[Culprit, ...]
    """Ranks among which the culprit is, where none can be named."""
    untold: str
    """Why no rank can be named; "" where one is, or where nothing is left open."""
    in_flight: tuple[Culprit, ...]
    """States that a running job has too: reported, but no finding."""
    waiting: tuple[int, ...]
    """All ranks with a pending operation."""
    timed_out: tuple[int, ...]
    older: tuple[int, ...]
    """Ranks whose dump was taken before those of the others."""
    moving: tuple[int, ...]
    """Ranks that would be culprits, but they or those who wait for them had just moved."""


def find_culprits(dumps: Sequence[Dump], empty: Collection[int] = ()) -> Standstill:
    """`dumps` of gloo as `complete_gloo` returns them; `empty`: ranks whose dumps hold no operation."""
    search = _Search(DumpedRanks(dumps), empty)
    for rank in search.ranks.by_number.values():
        for place in rank.front:
            search.visit(place)
    search.follow()
    search.close_cycles()
    return search.result()


class _Search:
    def __init__(self, ranks: DumpedRanks, empty: Collection[int]) -> None:
        self.ranks = ranks
        self.empty = empty
        self.even: set[PendingPoint] = set()
        """Places where ranks differ and no majority shows which of them is right."""
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
        """The first collective pending on a rank that others have completed, if there are enough. Those
        that a leaf may complete before the root, as a broadcast, prove nothing alone.
        """
        pending = self.ranks.by_number[number].pending
        passed = [
            place
            for place in pending
            if place.source is None
            and any(self.ranks.position(n, place) == "done" for n in self.ranks.members(place))
        ]
        proved = any(op.synchronises for place in passed for op in pending[place])
        return passed[0] if proved and len(passed) >= _MIN_LAG else None

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
            number: tuple(signature(op) for op in self.ranks.by_number[number].pending[place])
            for number in here
        }
        counts = Counter(signed.values())
        if len(counts) < 2:
            return False
        usual, count = counts.most_common(1)[0]
        if 2 * count <= len(signed):
            self.even.add(place)
        for number, own in signed.items():
            if own != usual or 2 * count <= len(signed):
                self.causes[number, "disagrees"] = place
        return True

    def close_cycles(self) -> None:
        """Record each cycle that nothing leads out of: its odd ranks, else a deadlock of all."""
        for cycle in cycles(self.edges):
            if len(cycle) > 1 and self._is_closed(cycle):
                places = [node for node in cycle if isinstance(node, PendingPoint)]
                ranks = {node for node in cycle if isinstance(node, int)}
                ranks = ranks or {n for place in places for n in self._inside(place)}
                odd = self._outvoted(ranks) or self._odd(places[:_MAX_PLACES], ranks)
                why: Why = "out of order" if len(odd) == 1 else "deadlock"
                odd = odd if len(odd) == 1 else sorted(ranks)
                self.causes |= {(number, why): places[0] for number in odd}

    def _outvoted(self, ranks: set[int]) -> list[int]:
        """The ranks that went on to another operation than most did after the same one."""
        dumps = [rank.dump for rank in self.ranks.by_number.values()]
        odd = []
        for number in ranks:
            own = self.ranks.by_number[number].dump.passages
            if own.before_first is not None:
                then = [d.passages.after.get(own.before_first) for d in dumps]
                sites = [site for site in then if site is not None]
                if 2 * sites.count(own.after[own.before_first]) < len(sites):
                    odd.append(number)
        return odd

    def _is_closed(self, cycle: Sequence[Node]) -> bool:
        inside = set(cycle)
        return all(inside.issuperset(self.edges[node]) for node in cycle)

    def _odd(self, places: Sequence[PendingPoint], ranks: set[int]) -> list[int]:
        """The ranks of a cycle that deviate most: absent where most members of an operation are,
        present where most are not, or in an order that most do not keep. The fewer share a
        deviation, the more it weighs. Of two members neither is most.
        """
        if any(len(self.ranks.members(place)) < 3 for place in places):
            return sorted(ranks)
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
        named, suspects, untold = self._sort_out(culprits)
        if not culprits and self._is_gloo(list(ranks)):
            untold = self._open_question(in_flight, moving)
        return Standstill(
            culprits=tuple(named),
            suspects=tuple(suspects),
            untold=untold,
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
            elif why in _MOVING and any(n in self.moving for n in (number, *culprit.waiting)):
                moving.add(number)
            else:
                culprits.append(culprit)
        return culprits, in_flight, moving

    def _sort_out(self, culprits: Sequence[Culprit]) -> tuple[list[Culprit], list[Culprit], str]:
        """Culprits that are certain, else suspects and the reason why none of them is."""
        doubts = {culprit: self._doubt(culprit) for culprit in culprits}
        certain = [culprit for culprit, doubt in doubts.items() if not doubt]
        firm = [culprit for culprit in certain if culprit.why != "no dump"]
        if firm or len(certain) == len(culprits):
            return (firm or certain), [], ""
        reasons = dict.fromkeys(filter(None, doubts.values()))
        return [], list(culprits), "; ".join(reasons)

    def _doubt(self, culprit: Culprit) -> str:
        """Why a rank at the end of the waits need not be the culprit; "" if it is."""
        number, why = culprit.rank, culprit.why
        if why == "never arrived" and may_await_message(self.ranks, number, self.waited_at[number]):
            return "gloo records no send and recv, and a rank outside collectives may wait in one"
        if why == "disagrees" and self.causes[number, why] in self.even:
            return "ranks differ in an operation, and no majority shows which of them is right"
        if why == "deadlock":
            return "they wait for each other in a circle, and none of them stands alone"
        if why == "no dump" and number in self.empty:
            return f"the dump of rank {number} is empty"
        if why == "no dump" and self._is_gloo(culprit.waiting):
            return self._doubt_of_the_dead(culprit)
        return ""

    def _doubt_of_the_dead(self, culprit: Culprit) -> str:
        """gloo ends a process that receives another size than it expects: a victim leaves no dump."""
        gone = [number for number, why in self.causes if why == "no dump"]
        end = (
            "gloo ends the process that receives a wrong size, so who left no dump may be a victim"
        )
        if len(gone) > 1 or len(culprit.waiting) < 2:
            return f"{end} of another rank"
        others = [self.ranks.by_number[number].dump for number in culprit.waiting]
        if any(is_ragged(op) for dump in others for op in dump.ops):
            return f"{end} of another rank: sizes that may differ were exchanged"
        if any(has_messages(rank.dump, self.ranks) for rank in self.ranks.by_number.values()):
            return f"{end} of a message, and gloo records no messages"
        return ""

    def _open_question(self, in_flight: Sequence[Culprit], moving: set[int]) -> str:
        """What gloo's dumps leave open where nothing in them stands still."""
        if moving:
            behind = ", ".join(map(str, sorted(moving)))
            return (
                f"the ranks had just moved when they dumped (behind: {behind}), and gloo marks an "
                "operation that failed as done: the job may run, or have broken off here"
            )
        if any(culprit.why in ("stuck", "not started") for culprit in in_flight):
            return (
                f"all ranks known to take part are in {in_flight[0].where}, as in a running job; "
                "gloo lists no members, so a rank without a dump may be missing"
            )
        if in_flight:
            return (
                f"few ranks wait, in {in_flight[0].where}, and more are in no recorded operation, as "
                "in a running job; gloo records no send and recv, in which they may wait"
            )
        return (
            "no recorded operation is pending, and gloo records no send and recv: if the job hangs, it "
            "does so in one of these or outside torch.distributed"
        )

    def _is_gloo(self, numbers: Sequence[int]) -> bool:
        return any(self.ranks.by_number[number].dump.gloo for number in numbers)

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
            awaited=op.frames if why in ("never arrived", "no dump") else (),
        )


def _fewer(split: tuple[list[int], list[int]]) -> list[int]:
    """The smaller part; both if they are equal, none if one is empty."""
    some, others = split
    if not some or not others:
        return []
    return some + others if len(some) == len(others) else min(some, others, key=len)
