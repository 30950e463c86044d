"""Clocks of several ranks: `align` finds their offsets.

Ranks of one machine share its clock. Between machines, ranks leave a collective together that needs
all of them; messages both ways bound an offset from both sides. Sends and broadcasts end when they
please and tell nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.traces.collective_matching import SharedCollectives, is_causal
from computeflow.telemetry.traces.rank_measurements import MeetingKind, RankMeasurement

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    offsets: Ints
    """Nanoseconds that each rank's clock is ahead of the first one's."""
    known: frozenset[int]
    """Indexes of ranks whose offset is known."""
    notes: tuple[str, ...]


def align(ranks: Sequence[RankMeasurement], groups: Sequence[SharedCollectives]) -> Clocks:
    hosts = [rank.host_name if rank.origin.on_clock else "" for rank in ranks]
    trusted = _aligned(ranks, groups, hosts)
    wrong = [group for group in groups if not is_causal(ranks, group, trusted.offsets)]
    if not wrong or not any(hosts.count(name) > 1 for name in hosts if name):
        return trusted
    apart = _aligned(ranks, groups, [""] * len(ranks))
    still = [group for group in groups if not is_causal(ranks, group, apart.offsets)]
    if len(still) >= len(wrong):
        return trusted
    note = "clocks of ranks on one machine disagree: they were aligned on shared collectives"
    return Clocks(offsets=apart.offsets, known=apart.known, notes=(*apart.notes, note))


def _aligned(
    ranks: Sequence[RankMeasurement], groups: Sequence[SharedCollectives], hosts: Sequence[str]
) -> Clocks:
    """Offsets where ranks of one host share a clock."""
    offsets = np.zeros(len(ranks), np.int64)
    known: set[int] = set()

    def learn(index: int, offset: int) -> None:
        same = [i for i, name in enumerate(hosts) if name and name == hosts[index]]
        for each in {index, *same} - known:
            offsets[each] = offset
            known.add(each)

    learn(0, 0)
    meeting = [group for group in groups if group.meeting is MeetingKind.ALL]
    while (found := _next(ranks, meeting, offsets, known)) or (
        found := _by_messages(ranks, groups, offsets, known)
    ):
        for index, offset in found.items():
            if index not in known:
                learn(index, offset)
    return Clocks(offsets=offsets, known=frozenset(known), notes=())


def _next(
    ranks: Sequence[RankMeasurement],
    groups: Sequence[SharedCollectives],
    offsets: Ints,
    known: set[int],
) -> dict[int, int]:
    """Offsets of ranks that share a group with a known one: medians over the ends of collectives."""
    for group in groups:
        anchor = next((i for i, index in enumerate(group.ranks) if index in known), None)
        if anchor is None or set(group.ranks) <= known:
            continue
        index = group.ranks[anchor]
        base = ranks[index].collectives.end[group.rows[anchor]] - offsets[index]
        return {
            other: int(np.median(ranks[other].collectives.end[rows] - base))
            for other, rows in zip(group.ranks, group.rows, strict=True)
            if other not in known
        }
    return {}


def _by_messages(
    ranks: Sequence[RankMeasurement],
    groups: Sequence[SharedCollectives],
    offsets: Ints,
    known: set[int],
) -> dict[int, int]:
    """The offset of a rank that exchanges messages with a known one: none comes before it is sent,
    which bounds it from both sides.
    """
    ways = {group.ranks: group for group in groups if group.meeting is MeetingKind.SEND}
    for (sender, receiver), there in ways.items():
        back = ways.get((receiver, sender))
        if sender not in known or receiver in known or back is None:
            continue
        ahead = _least_delay(ranks, there) + offsets[sender]
        behind = _least_delay(ranks, back) - offsets[sender]
        return {receiver: int((ahead - behind) // 2)}
    return {}


def _least_delay(ranks: Sequence[RankMeasurement], group: SharedCollectives) -> int:
    sender, receiver = (ranks[index].collectives for index in group.ranks)
    return int((receiver.end[group.rows[1]] - sender.start[group.rows[0]]).min())
