"""Messages of several ranks whose partners are not recorded, matched by time: `pairs_by_time`.

A pipeline's schedule is the same in every step. Along a chain of stages each one begins with some
forward passes, then forward and backward take turns, then the other backward passes follow: with as
many at first as there are, it is GPipe, with fewer 1F1B. How many is what is looked for: so that no
message comes before it was sent, and those that were waited for come when they are sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.traces.rank_measurements import MeetingKind, RankMeasurement

Ints = NDArray[np.int64]
Pairs = Iterable[tuple[tuple[int, int], tuple[Ints, Ints]]]
"""Sender and receiver, and the rows of their messages."""
PER_STEP = 10**7
"""More collectives of a group than any step has; makes one key of a step and an index within it."""
TOLERANCE_NS = 1_000_000
"""Time by which a rank may seem to leave before another comes: threads note their times late."""
_WAITED_NS = 2_000_000
"""A message that took longer was waited for: it came when it was sent."""
_MAX_MESSAGES = 256
"""Most messages of a rank in a step: all pairs of warm-ups of two neighbours are tried."""


def step_keys(rank: RankMeasurement, rows: Ints) -> tuple[Ints, Ints]:
    """Sorted keys (step and index within it) and rows of some of a rank's collectives."""
    return _keys(rank.collectives.step[rows].astype(np.int64), rows)


def _keys(step: Ints, rows: Ints) -> tuple[Ints, Ints]:
    starts = np.concatenate([[True], step[1:] != step[:-1]])[: len(rows)]
    first = np.maximum.accumulate(np.where(starts, np.arange(len(rows)), 0))
    key = (step + 1) * PER_STEP + np.arange(len(rows)) - first
    order = np.argsort(key, kind="stable")
    return key[order], rows[order]


def in_order(
    sent: tuple[RankMeasurement, Ints], received: tuple[RankMeasurement, Ints]
) -> tuple[Ints, Ints]:
    """Rows of messages that both sides have, by step and order within it."""
    (left, rows), (right, others) = (step_keys(rank, rows) for rank, rows in (sent, received))
    common = left[np.isin(left, right)]
    return rows[np.searchsorted(left, common)], others[np.searchsorted(right, common)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Messages:
    """A rank's messages of one direction (steps x messages in a step)."""

    rows: Ints
    start: Ints
    end: Ints


def pairs_by_time(
    ranks: Sequence[RankMeasurement], partitions: Sequence[Sequence[Sequence[int]]]
) -> Pairs:
    """Messages along chains of ranks, of the first way to divide the ranks that makes chains."""
    tables = [(_table(rank, MeetingKind.SEND), _table(rank, MeetingKind.RECEIVE)) for rank in ranks]
    for partition in partitions:
        chains = [_chain([tables[index] for index in chain]) for chain in partition]
        if all(chain is not None for chain in chains):
            for chain, pairs in zip(partition, chains, strict=True):
                for (sender, receiver), rows in pairs or ():
                    yield (chain[sender], chain[receiver]), rows
            return


def _table(rank: RankMeasurement, meeting: MeetingKind) -> _Messages | None:
    """The messages by step, from one end of the optimizer to the next where none are marked; None where
    steps differ in their number.
    """
    done = rank.collectives
    rows = np.flatnonzero(done.meeting == meeting)
    step = done.step[rows].astype(np.int64)
    if not rank.steps and rank.line is not None:
        step = np.searchsorted(rank.line.steps, done.start[rows], side="right")
    key, rows = _keys(step, rows)
    steps = len(np.unique(key // PER_STEP))
    if not steps or len(rows) % steps or len(rows) > steps * _MAX_MESSAGES:
        return None
    if (key % PER_STEP != np.tile(np.arange(len(rows) // steps), steps)).any():
        return None
    by_step = rows.reshape(steps, -1)
    return _Messages(rows=by_step, start=done.start[by_step], end=done.end[by_step])


def _chain(
    tables: Sequence[tuple[_Messages | None, _Messages | None]],
) -> list[tuple[tuple[int, int], tuple[Ints, Ints]]] | None:
    """Messages between neighbours of a chain; None where their numbers do not fit one."""
    stages = [
        _Stage(sends=sends, takes=takes)
        for sends, takes in tables
        if sends is not None and takes is not None
    ]
    if len(stages) < max(len(tables), 2) or not _fits_chain(stages):
        return None
    ends = (0, len(stages) - 1)
    pairs = []
    for at, (left, right) in enumerate(pairwise(_warm_ups(stages))):
        first, second = stages[at], stages[at + 1]
        forward, backward = _link(first, left, second, right, is_end=(at in ends, at + 1 in ends))
        pairs.append(((at, at + 1), _rows(first, second, forward)))
        pairs.append(((at + 1, at), _rows(second, first, backward)))
    return pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    sends: _Messages
    takes: _Messages


def _fits_chain(stages: Sequence[_Stage]) -> bool:
    """Whether the first and last rank have half as many messages as each between them."""
    if len({len(table.rows) for stage in stages for table in (stage.sends, stage.takes)}) > 1:
        return False
    for counts in (
        [stage.sends.rows.shape[1] for stage in stages],
        [stage.takes.rows.shape[1] for stage in stages],
    ):
        if counts != [counts[0], *([2 * counts[0]] * (len(counts) - 2)), counts[0]]:
            return False
    return True


def _is_forward(warm_up: int, micro_batches: int) -> NDArray[np.bool_]:
    """Which of a stage's passes are forward, in order."""
    forward = np.zeros(2 * micro_batches, bool)
    forward[:warm_up] = True
    forward[warm_up : 2 * micro_batches - warm_up : 2] = True
    return forward


_Link = tuple[tuple[Ints, Ints], tuple[Ints, Ints]]
"""Numbers of the messages that go forward (sent, taken) and backward, in a step."""


def _link(
    first: _Stage, left: int, second: _Stage, right: int, *, is_end: tuple[bool, bool]
) -> _Link:
    """Messages between two neighbours, with their warm-ups; the first and last rank of a chain have
    one direction alone.
    """
    count = first.sends.rows.shape[1] if is_end[0] else first.sends.rows.shape[1] // 2
    every = np.arange(count)
    sides = []
    for warm_up, end in ((left, is_end[0]), (right, is_end[1])):
        forward = _is_forward(warm_up, count)
        sides.append((every, every) if end else (np.flatnonzero(forward), np.flatnonzero(~forward)))
    return (sides[0][0], sides[1][0]), (sides[1][1], sides[0][1])


def _rows(sender: _Stage, receiver: _Stage, link: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    sent, taken = link
    return sender.sends.rows[:, sent].ravel(), receiver.takes.rows[:, taken].ravel()


def _warm_ups(stages: Sequence[_Stage]) -> list[int]:
    """Forward passes with which each stage begins, of the cheapest schedule of all."""
    count = stages[0].sends.rows.shape[1]
    last = len(stages) - 1
    choices = [[0] if at in (0, last) else list(range(count + 1)) for at in range(len(stages))]
    best = {0: (0.0, [0])}
    for at in range(1, len(stages)):
        best = {
            right: min(
                (
                    cost + _cost(stages[at - 1], left, stages[at], right, (at == 1, at == last)),
                    [*path, right],
                )
                for left, (cost, path) in best.items()
            )
            for right in choices[at]
        }
    return min(best.values())[1]


def _cost(first: _Stage, left: int, second: _Stage, right: int, is_end: tuple[bool, bool]) -> float:
    forward, backward = _link(first, left, second, right, is_end=is_end)
    return _apart(first.sends, second.takes, forward) + _apart(second.sends, first.takes, backward)


def _apart(sent: _Messages, taken: _Messages, link: tuple[Ints, Ints]) -> float:
    """How far messages that were waited for came from when they were sent; coming before that counts
    a hundred times.
    """
    start = sent.start[:, link[0]]
    began, came = taken.start[:, link[1]], taken.end[:, link[1]]
    late = np.abs(came - np.maximum(start, began))[came - began > _WAITED_NS].sum()
    early = np.maximum(start - came - TOLERANCE_NS, 0).sum()
    return float(late + 100 * early)
