"""Collectives and messages of several ranks, matched: `match`.

A process group that the trace names has its collectives in one order on all of its ranks. Where
none is named (gloo), the largest group that causality allows is taken: nobody leaves before
everybody has come. Messages are matched by partner, tag and order; where the partner is not
recorded, by time (`message_matching`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.traces.message_matching import (
    TOLERANCE_NS,
    Pairs,
    in_order,
    pairs_by_time,
    step_keys,
)
from computeflow.telemetry.traces.mixed_groups import groups_by_time
from computeflow.telemetry.traces.rank_measurements import MeetingKind, RankMeasurement
from computeflow.telemetry.traces.trace import distinct

Ints = NDArray[np.int64]
Rows = NDArray[np.bool_]
_MAX_VIOLATIONS = 0.05
_MAX_SHIFT = 20
"""Most collectives by which recordings without steps may begin apart."""
_UNNAMED = "by name: "


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCollectives:
    """Collectives of one group that all of its recorded ranks have, or messages from the first rank
    to the second, matched.
    """

    group: str
    account: str
    meeting: MeetingKind
    ranks: tuple[int, ...]
    """Indexes in the list of ranks, not rank numbers."""
    rows: tuple[Ints, ...]
    """Rows of each rank's `RankCollectives`."""


def match(ranks: Sequence[RankMeasurement]) -> list[SharedCollectives]:
    on_host = share_host(ranks)
    found = list(_named_groups(ranks))
    found += _unnamed_groups(ranks, on_host=on_host)
    found += _messages(ranks, on_host=on_host)
    return found


def share_host(ranks: Sequence[RankMeasurement]) -> bool:
    """Whether all ranks ran on one machine, whose clock they share."""
    names = {rank.host_name for rank in ranks}
    return len(names) == 1 and "" not in names and all(rank.origin.on_clock for rank in ranks)


def _named_groups(ranks: Sequence[RankMeasurement]) -> Iterator[SharedCollectives]:
    members: dict[str, list[int]] = {}
    for index, rank in enumerate(ranks):
        for group in rank.groups:
            if not group.startswith(_UNNAMED):
                members.setdefault(group, []).append(index)
    for group, places in members.items():
        rows = [_rows_of(ranks[index], group) for index in places]
        yield from _matched(ranks, group, places, rows)


def _rows_of(rank: RankMeasurement, group: str) -> Ints:
    """A rank's collectives of one group, without messages whose partner is known."""
    done = rank.collectives
    known = (done.meeting >= MeetingKind.SEND) & (done.peer >= 0)
    return np.flatnonzero((done.group == rank.groups.index(group)) & ~known)


def _matched(
    ranks: Sequence[RankMeasurement], group: str, places: Sequence[int], rows: Sequence[Ints]
) -> Iterator[SharedCollectives]:
    """The collectives of a group that all of its ranks have, by step and order within it. Messages
    name no partner here, so of them only those of pairs can be matched.
    """
    if len(places) < 2:
        return
    keys, sorted_rows = zip(
        *(step_keys(ranks[index], mine) for index, mine in zip(places, rows, strict=True)),
        strict=True,
    )
    common = keys[0]
    for other in keys[1:]:
        common = distinct(common[np.isin(common, other)])
    if not len(common):
        return
    chosen = tuple(
        row[np.searchsorted(key, common)] for key, row in zip(keys, sorted_rows, strict=True)
    )
    shared = _shared(ranks, group, places, chosen)
    if shared.account != "comm.pp" or len(places) == 2:
        yield shared


def _shared(
    ranks: Sequence[RankMeasurement], group: str, places: Sequence[int], rows: tuple[Ints, ...]
) -> SharedCollectives:
    first = ranks[places[0]]
    meeting = MeetingKind(int(first.collectives.meeting[rows[0][0]]))
    return SharedCollectives(
        group=group,
        account=first.account_names[int(first.collectives.account[rows[0][0]])],
        meeting=MeetingKind.ALL if meeting >= MeetingKind.SEND else meeting,
        ranks=tuple(places),
        rows=rows,
    )


def _unnamed_groups(
    ranks: Sequence[RankMeasurement], *, on_host: bool
) -> Iterator[SharedCollectives]:
    """Collectives of groups that no trace names: of all ranks, or, where causality forbids it, of
    the groups that the headers state.
    """
    names = dict.fromkeys(
        name for rank in ranks for name in rank.groups if name.startswith(_UNNAMED)
    )
    for name in names:
        for alike in _alike(ranks, name):
            ways = [
                [
                    shared
                    for places in partition
                    for shared in _matched(
                        ranks, name, places, _aligned(ranks, places, alike, on_host=on_host)
                    )
                ]
                for partition in _partitions(ranks)
            ]
            causal = (way for way in ways if all(is_causal(ranks, part) for part in way))
            if not on_host:
                yield from ways[0]
            else:
                yield from _of_several_axes(ranks, name, alike, next(causal, None)) or ways[0]


_Way = list[SharedCollectives]
_MUCH = 0.5
"""Share of the unexplained time of one axis of groups below which several by turns are taken: where
one axis has all collectives of a name, the share is 0.84 to 1.12 (benchmarks/ranks, HSDP)."""


def _of_several_axes(
    ranks: Sequence[RankMeasurement], name: str, alike: Sequence[Ints], single: _Way | None
) -> _Way:
    """The collectives divided among groups of several axes, where that explains them much better."""
    mixed = list(_mixed(ranks, name, alike))
    if single is None:
        return mixed
    return mixed if _unexplained(ranks, mixed) < _MUCH * _unexplained(ranks, single) else single


def _unexplained(ranks: Sequence[RankMeasurement], way: _Way) -> float:
    """Time that ranks stay after the last came, and after the first left; endless for no groups."""
    total = 0.0 if way else np.inf
    for part in way:
        came, left = _times(ranks, part)
        total += float((np.maximum(left - came.max(axis=0), 0) + left - left.min(axis=0)).sum())
    return total


def _mixed(
    ranks: Sequence[RankMeasurement], name: str, alike: Sequence[Ints]
) -> Iterator[SharedCollectives]:
    """Collectives of groups of several axes that have the same name and size."""
    groups = {tuple(part) for partition in _partitions(ranks) for part in partition}
    needs_all = all(
        (rank.collectives.meeting[mine] == MeetingKind.ALL).all()
        for rank, mine in zip(ranks, alike, strict=True)
    )
    if len(groups) < 2 or not needs_all:
        return
    for places, rows in groups_by_time(ranks, alike, sorted(groups)).items():
        yield _shared(ranks, name, places, rows)


def _alike(ranks: Sequence[RankMeasurement], name: str) -> Iterator[list[Ints]]:
    """Each rank's collectives of one name, by size where the ranks have the same sizes. gloo's scatter
    and gather have a size on the rank that scatters or gathers alone, 0 elsewhere: they stay together.
    """
    rows = [
        np.flatnonzero(
            (rank.collectives.group == rank.groups.index(name))
            & (rank.collectives.meeting < MeetingKind.SEND)
        )
        if name in rank.groups
        else np.zeros(0, np.int64)
        for rank in ranks
    ]
    sizes = [
        distinct(rank.collectives.elements[mine]).tolist()
        for rank, mine in zip(ranks, rows, strict=True)
    ]
    everywhere = len(sizes[0]) == 1 or 0 not in sizes[0]
    if everywhere and all(size == sizes[0] for size in sizes) and len(sizes[0]) <= 64:
        for size in sizes[0]:
            yield [
                mine[rank.collectives.elements[mine] == size]
                for rank, mine in zip(ranks, rows, strict=True)
            ]
    else:
        yield rows


def _partitions(ranks: Sequence[RankMeasurement]) -> list[list[list[int]]]:
    """Ways to divide the ranks into groups: all in one; by each axis of the process groups that the
    headers state, the largest first. All ranks make their groups in one order.
    """
    places = {rank.rank: index for index, rank in enumerate(ranks)}
    found = [[list(range(len(ranks)))]]
    for axis in range(max(len(rank.process_groups) for rank in ranks)):
        groups = {
            tuple(rank.process_groups[axis]) for rank in ranks if axis < len(rank.process_groups)
        }
        divided = [
            sorted(places[number] for number in group if number in places) for group in groups
        ]
        if sorted(index for part in divided for index in part) == list(range(len(ranks))):
            found.append(sorted(divided))
    return sorted(found, key=lambda parts: -max(map(len, parts)))


def _aligned(
    ranks: Sequence[RankMeasurement],
    places: Sequence[int],
    alike: Sequence[Ints],
    *,
    on_host: bool,
) -> list[Ints]:
    """The rows of these ranks; where no steps are marked, without those before the others began."""
    rows = [alike[index] for index in places]
    if not on_host or any(ranks[index].steps for index in places) or not all(map(len, rows)):
        return rows
    ends = [ranks[i].collectives.end[mine] for i, mine in zip(places, rows, strict=True)]
    late = max(range(len(ends)), key=lambda at: int(ends[at][0]))
    skipped = [_shift(end, ends[late]) for end in ends]
    return [mine[skip:] for mine, skip in zip(rows, skipped, strict=True)]


def _shift(ends: Ints, others: Ints) -> int:
    """How many of these to skip so that the rest ends when the others do."""
    best, least = 0, np.inf
    for skip in range(min(_MAX_SHIFT, len(ends))):
        count = min(len(ends) - skip, len(others))
        apart = float(np.median(np.abs(ends[skip : skip + count] - others[:count])))
        if apart < least:
            best, least = skip, apart
    return best


def is_causal(
    ranks: Sequence[RankMeasurement], shared: SharedCollectives, offsets: Ints | None = None
) -> bool:
    """Whether nobody leaves before those that it needs have come."""
    starts, ends = _times(ranks, shared, offsets)
    if shared.meeting is MeetingKind.ALL:
        early = starts.max(axis=0) - ends.min(axis=0)
    elif shared.meeting is MeetingKind.SEND:
        early = starts[0] - ends[1]
    else:  # at least one rank comes before each leaves
        early = starts.min(axis=0) - ends.min(axis=0)
    return bool((early > TOLERANCE_NS).mean() <= _MAX_VIOLATIONS)


def _times(
    ranks: Sequence[RankMeasurement], shared: SharedCollectives, offsets: Ints | None = None
) -> tuple[Ints, Ints]:
    """Starts and ends on each rank (ranks x collectives)."""
    ahead = np.zeros(len(ranks), np.int64) if offsets is None else offsets
    starts, ends = (
        np.stack(
            [
                getattr(ranks[index].collectives, side)[rows] - ahead[index]
                for index, rows in zip(shared.ranks, shared.rows, strict=True)
            ]
        )
        for side in ("start", "end")
    )
    return starts, ends


def _messages(ranks: Sequence[RankMeasurement], *, on_host: bool) -> Iterator[SharedCollectives]:
    """Messages from one rank to another."""
    named = _partners(ranks)
    if any((partner >= 0).any() for partner in named):
        pairs = _by_partner(ranks, named)
    elif on_host:
        pairs = pairs_by_time(ranks, _partitions(ranks))
    else:
        return
    for (sender, receiver), (sent, received) in pairs:
        if not len(sent):
            continue
        rank = ranks[sender]
        shared = SharedCollectives(
            group=f"messages from {ranks[sender].rank} to {ranks[receiver].rank}",
            account=rank.account_names[int(rank.collectives.account[sent[0]])],
            meeting=MeetingKind.SEND,
            ranks=(sender, receiver),
            rows=(sent, received),
        )
        if not on_host or is_causal(ranks, shared):
            yield shared


def _partners(ranks: Sequence[RankMeasurement]) -> list[Ints]:
    """The index of each message's other rank, for each rank; -1 where it is unknown.

    Partners are numbered within their process group: all ranks together, or the groups of one axis,
    whichever way more sends have their receive.
    """
    axes = max(len(rank.process_groups) for rank in ranks)
    ways = [[_numbered(rank, ranks, axis) for rank in ranks] for axis in range(-1, axes)]
    return max(ways, key=lambda named: _answered(ranks, named))


def _numbered(rank: RankMeasurement, ranks: Sequence[RankMeasurement], axis: int) -> Ints:
    """Partners as the process group of one axis numbers them; of all ranks with -1."""
    places = {other.rank: index for index, other in enumerate(ranks)}
    group: Sequence[int] = range(max(places) + 1)
    if axis >= 0:
        group = rank.process_groups[axis] if axis < len(rank.process_groups) else ()
    table = np.array([*(places.get(number, -1) for number in group), -1], np.int64)
    done = rank.collectives
    known = (done.meeting >= MeetingKind.SEND) & (done.peer >= 0) & (done.peer < len(group))
    return np.asarray(table[np.where(known, done.peer, -1)])


def _answered(ranks: Sequence[RankMeasurement], named: Sequence[Ints]) -> int:
    """How many sends have a receive."""
    sends: Counter[tuple[int, int]] = Counter()
    takes: Counter[tuple[int, int]] = Counter()
    for index, (rank, partner) in enumerate(zip(ranks, named, strict=True)):
        for other in distinct(partner[partner >= 0]).tolist():
            mine = rank.collectives.meeting[partner == other]
            sends[index, other] += int((mine == MeetingKind.SEND).sum())
            takes[other, index] += int((mine == MeetingKind.RECEIVE).sum())
    return sum(min(count, takes[pair]) for pair, count in sends.items())


def _by_partner(ranks: Sequence[RankMeasurement], named: Sequence[Ints]) -> Pairs:
    for receiver, rank in enumerate(ranks):
        done = rank.collectives
        taken = done.meeting == MeetingKind.RECEIVE
        for sender in distinct(named[receiver][taken & (named[receiver] >= 0)]).tolist():
            other = ranks[sender].collectives
            sent = (other.meeting == MeetingKind.SEND) & (named[sender] == receiver)
            received = taken & (named[receiver] == sender)
            parts = [
                in_order(
                    (ranks[sender], np.flatnonzero(sent & (other.tag == tag))),
                    (rank, np.flatnonzero(received & (done.tag == tag))),
                )
                for tag in distinct(done.tag[received]).tolist()
            ]
            rows = [np.concatenate(side) for side in zip(*parts, strict=True)]
            yield (sender, receiver), (rows[0], rows[1])
