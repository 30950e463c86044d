"""Time that only seems to be a wait for a message: `own_time_returned`.

The host itself notes the end of a message, when it asks for it. What it did since it submitted the
message, if no operator shows it, ends with the message like a wait. The other rank tells them
apart: once the message was sent, the rest is the host's own time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.intervals import Intervals, union
from computeflow.telemetry.traces.collective_matching import match, share_host
from computeflow.telemetry.traces.collective_waits import step_edges
from computeflow.telemetry.traces.host_transfers import late_after
from computeflow.telemetry.traces.message_matching import TOLERANCE_NS
from computeflow.telemetry.traces.rank_measurements import MeetingKind, RankLine, RankMeasurement
from computeflow.telemetry.traces.trace import distinct

Ints = NDArray[np.int64]
_NEVER = np.iinfo(np.int64).max


def own_time_returned(ranks: Sequence[RankMeasurement]) -> tuple[RankMeasurement, ...]:
    """The same ranks; their time after a message was there is `host`, not a wait for it."""
    if any(rank.on_device or rank.line is None for rank in ranks) or not share_host(ranks):
        return tuple(ranks)
    asked = [_asked(rank, there) for rank, there in zip(ranks, _there(ranks), strict=True)]
    usual = [_usual(rank, each) for rank, each in zip(ranks, asked, strict=True)]
    if len({tuple(rank.collectives.meeting.tolist()) for rank in ranks}) == 1:
        usual = [_least(usual) | own for own in usual]
    return tuple(
        _returned(rank, each, busy) for rank, each, busy in zip(ranks, asked, usual, strict=True)
    )


_QUICKEST = 0.05
"""Share of the messages of one size by which their transfer is known. Ranks of an even ring ask late
for most of them: a quarter ends within 5 ms, a twentieth within 0.3 ms of being sent, as in pipelines
whose stages wait (benchmarks/ranks_by_others). Where all are asked for late, it looks like transfer."""


def _there(ranks: Sequence[RankMeasurement]) -> list[Ints]:
    """When each message was there, for each rank's collectives; never where that is unknown.

    A message is there when its sender and its receiver have come and it was transferred, in the time
    of the quickest of its size; one that is sent before its receiver comes may be kept by the sender.
    """
    found = [np.full(len(rank.collectives.start), _NEVER, np.int64) for rank in ranks]
    took: list[Ints] = []
    sizes: list[Ints] = []
    for group in match(ranks):
        if group.meeting is MeetingKind.SEND:
            (sender, sent), (receiver, taken) = zip(group.ranks, group.rows, strict=True)
            give, take = ranks[sender].collectives, ranks[receiver].collectives
            met = np.maximum(give.start[sent], take.start[taken])
            needed = met <= give.end[sent] + TOLERANCE_NS
            found[receiver][taken] = met
            found[sender][sent] = np.where(needed, met, give.start[sent])
            took.append(np.maximum(take.end[taken] - met, 0))
            sizes.append(take.elements[taken])
    if not took:
        return found
    all_took, all_sizes = np.concatenate(took), np.concatenate(sizes)
    for size in distinct(all_sizes).tolist():
        usual = int(np.quantile(all_took[all_sizes == size], _QUICKEST))
        for rank, times in zip(ranks, found, strict=True):
            times[(times < _NEVER) & (rank.collectives.elements == size)] += usual
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What seem to be a rank's waits for messages."""

    there: Ints
    """When each of the rank's messages was there."""
    begin: Ints
    end: Ints
    until: Ints
    """When the messages were there that end with each wait."""
    place: Ints
    """Which of its step's messages the last of them is."""

    @property
    def late(self) -> NDArray[np.bool_]:
        """Whether the host went on later than after waiting."""
        return np.asarray(self.end - self.until > late_after(self.end - self.begin))


def _asked(rank: RankMeasurement, there: Ints) -> _Asked:
    assert rank.line is not None
    waits, ends = rank.line.waits, rank.collectives.end
    order = np.argsort(ends, kind="stable")
    first = np.searchsorted(ends[order], waits.start, side="right")
    last = np.searchsorted(ends[order], waits.end + TOLERANCE_NS, side="right")
    rows = np.flatnonzero(last > first)
    came = [there[order[low:high]].max() for low, high in zip(first[rows], last[rows], strict=True)]
    step = np.searchsorted(rank.line.steps, rank.collectives.start, side="right")
    place = np.arange(len(step)) - np.searchsorted(step, step)
    return _Asked(
        there=there,
        begin=waits.start[rows],
        end=waits.end[rows],
        until=np.clip(np.array(came, np.int64), waits.start[rows], waits.end[rows]),
        place=place[order[last[rows] - 1]],
    )


_OFTEN = 1 / 3
"""Share of the steps above which a host that asks late for a message is busy before it asks: it is
late in 0.4 to 1 of them at places of an even ring, in up to 0.33 where stages wait for each other
(benchmarks/ranks and ranks_by_others)."""


def _usual(rank: RankMeasurement, asked: _Asked) -> dict[int, int]:
    """How long the host is busy before it asks for a message, by its place in the step."""
    assert rank.line is not None
    least = max(_OFTEN * (len(rank.line.steps) - 1), 1)
    length, late = asked.end - asked.begin, asked.late
    return {
        place: int(np.median(length[late & (asked.place == place)]))
        for place in distinct(asked.place).tolist()
        if (late & (asked.place == place)).sum() > least
    }


def _least(usual: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """The least of several ranks, by place: ranks that run the same program are busy too where they
    wait in every step, so that it cannot be seen. One rank alone may be the one that is slow.
    """
    known: dict[int, list[int]] = {}
    for each in usual:
        for place, length in each.items():
            known.setdefault(place, []).append(length)
    return {place: min(lengths) for place, lengths in known.items() if len(lengths) > 1}


def _own(asked: _Asked, usual: Mapping[int, int]) -> Intervals:
    """The host's own time in what seemed to be waits: after the message was there; where it is usually
    busy before it asks, all of it, and as much in the steps that then had to wait.
    """
    busy = np.array([usual.get(place, 0) for place in asked.place.tolist()], np.int64)
    start = np.where(busy > 0, asked.begin, asked.until)
    stop = np.where(asked.late, asked.end, np.minimum(asked.begin + busy, asked.end))
    return union(start[stop > start], stop[stop > start])


def _returned(rank: RankMeasurement, asked: _Asked, usual: Mapping[int, int]) -> RankMeasurement:
    assert rank.line is not None
    done, there = rank.collectives, asked.there
    own = _own(asked, usual)
    if not own.total:
        return rank
    near = union(own.start, own.end + TOLERANCE_NS + 1)
    asked_late = near.contains(done.end) & (there < done.end)
    back = {name: part.both(own) for name, part in rank.exposed.items()}
    seconds = {name: part.total / 1e9 for name, part in back.items()}
    total = sum(seconds.values())
    return replace(
        rank,
        accounts=_moved(rank.accounts, seconds),
        by_step=_moved_by_step(rank, back),
        host=rank.host | {"launch": rank.host.get("launch", 0.0) + total},
        exposed={name: part.minus(own) for name, part in rank.exposed.items()},
        collectives=replace(
            done, end=np.where(asked_late, np.maximum(there, done.start), done.end)
        ),
        line=_line(rank.line, own),
    )


def _moved(accounts: Mapping[str, float], seconds: Mapping[str, float]) -> dict[str, float]:
    moved = {name: value - seconds.get(name, 0.0) for name, value in accounts.items()}
    moved["host"] = moved.get("host", 0.0) + sum(seconds.values())
    return moved


def _moved_by_step(
    rank: RankMeasurement, back: Mapping[str, Intervals]
) -> dict[str, tuple[float, ...]]:
    if not rank.steps:
        return rank.by_step
    edges = step_edges(rank)
    less = {name: np.diff(part.before(edges)) / 1e9 for name, part in back.items()}
    found = {name: np.array(values) - less.get(name, 0.0) for name, values in rank.by_step.items()}
    found["host"] = found.get("host", np.zeros(len(rank.steps))) + sum(less.values())
    return {name: tuple(values.tolist()) for name, values in found.items()}


def _line(line: RankLine, own: Intervals) -> RankLine:
    """The line cut at the host's own time too, which lies in waits: pieces that held nothing."""
    edges = distinct(np.concatenate([line.edges, own.start, own.end]))
    piece = np.searchsorted(line.edges, edges[:-1], side="right") - 1
    names = line.accounts if "host" in line.accounts else (*line.accounts, "host")
    seconds = np.zeros((len(piece), len(names)), np.float32)
    seconds[:, : len(line.accounts)] = line.seconds[piece]
    inside = own.contains(edges[:-1])
    seconds[inside, names.index("host")] += (np.diff(edges) / 1e9)[inside]
    return replace(line, edges=edges, accounts=names, seconds=seconds, waits=line.waits.minus(own))
