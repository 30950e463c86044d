"""Transfers that the host carries out itself (gloo, MPI, UCC), and when it waited for one.

A trace has no event for waiting. What it has is the end of a transfer: the host that waits for it
goes on at once, while a host that is busy elsewhere goes on at a time of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.intervals import EMPTY, Intervals, between, union
from computeflow.telemetry.traces.event_names import Mark
from computeflow.telemetry.traces.pipeline_annotations import partners_by_annotation
from computeflow.telemetry.traces.trace import (
    HostMessages,
    Ints,
    Marks,
    Trace,
    TracedCollective,
    distinct,
)

_AT_ONCE_NS = 1_000_000
_AT_ONCE_SHARE = 0.05
"""Time, and share of a stretch without operators, between a transfer's end and the next operator of
a host that waited for it: 0.1 to 0.8 ms with gloo on two busy cores (benchmarks/ranks). Its worker
thread may note the end after the host has gone on, by 0.3 to 2 ms."""
_LATE_NS = 3_000_000, 12_000_000
_LATE_SHARE = 0.15
"""The same of a host that had to wait for a core: up to 10 ms after waits of 110 ms, with four ranks
on two busy cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    rows: HostMessages
    submitted: Ints
    """When the host submitted each."""
    submitter: NDArray[np.int32]
    described: dict[int, TracedCollective]
    """Each by its number in `rows`."""
    handed: Intervals
    """Host time in which transfers were submitted."""


def find_transfers(trace: Trace) -> Transfers:
    messages = trace.messages
    carried = np.array([name.startswith(_CARRIED) for name in trace.names] or [False])
    posted = np.array([name.startswith("c10d::") for name in trace.names] or [False])
    rows = _chosen(messages, carried[messages.name])
    posts = _chosen(messages, posted[messages.name])
    if not len(rows):
        rows = _unread(trace)
    post = _posts(trace, rows, posts)
    known = post >= 0
    return Transfers(
        rows=rows,
        submitted=np.where(known, posts.start[post], rows.start) if len(posts) else rows.start,
        submitter=np.where(known, posts.thread[post], rows.thread) if len(posts) else rows.thread,
        described=_described(trace, rows, posts, post),
        handed=union(posts.start, posts.end),
    )


_CARRIED = ("gloo:", "mpi:", "ucc:")


def _described(
    trace: Trace, rows: HostMessages, posts: HostMessages, post: Ints
) -> dict[int, TracedCollective]:
    """Each transfer under the name of its submission: gloo scatters by reducing, for one."""
    peers = np.where(post >= 0, posts.peer[post], -1) if len(posts) else np.full(len(rows), -1)
    tags = np.where(post >= 0, posts.tag[post], 0) if len(posts) else np.zeros(len(rows), int)
    if (peers < 0).all():
        peers, tags = partners_by_annotation(trace, rows)
    names = np.where(post >= 0, posts.name[post], rows.name) if len(posts) else rows.name
    known: dict[tuple[int, ...], TracedCollective] = {}
    described = {}
    columns = (names, rows.elements, peers, tags)
    for row, key in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        if key not in known:
            name, elements, peer, tag = key
            known[key] = TracedCollective(
                name=trace.names[name].rpartition(":")[2],
                group="",
                group_doc="",
                ranks=(),
                elements=elements,
                dtype="",
                peer=peer,
                tag=tag,
            )
        described[row] = known[key]
    return described


def _chosen(messages: HostMessages, rows: NDArray[np.bool_]) -> HostMessages:
    return HostMessages(
        **{name: getattr(messages, name)[rows] for name in HostMessages.__dataclass_fields__}
    )


def _unread(trace: Trace) -> HostMessages:
    """The transfers of a format whose reader keeps no messages."""
    marks = trace.marks
    moved = marks.mark == Mark.TRANSFER
    nothing = np.zeros(int(moved.sum()), np.int32)
    return HostMessages(
        start=marks.start[moved],
        end=marks.end[moved],
        thread=marks.thread[moved],
        name=marks.name[moved],
        peer=nothing - 1,
        tag=nothing,
        elements=nothing.astype(np.int64),
    )


def _posts(trace: Trace, rows: HostMessages, posts: HostMessages) -> Ints:
    """The row of `posts` that submitted each transfer; -1 where unknown.

    Messages are carried out on the thread that submitted them; other collectives in the order of
    their submission, by threads of their own.
    """
    found = np.full(len(rows), -1, np.int64)
    single = np.array([name.endswith(("send", "recv", "recv_")) for name in trace.names] or [False])
    lone, posted = single[rows.name], single[posts.name]
    for thread in distinct(rows.thread[lone]):
        mine = np.flatnonzero(posted & (posts.thread == thread))
        here = np.flatnonzero(lone & (rows.thread == thread))
        at = np.searchsorted(posts.start[mine], rows.start[here], side="right") - 1
        post = mine[np.maximum(at, 0)] if len(mine) else at
        inside = (at >= 0) & (posts.end[post] >= rows.start[here]) if len(mine) else at > at
        found[here[inside]] = post[inside]
    others, submitted = np.flatnonzero(~lone), np.flatnonzero(~posted)
    if len(others) == len(submitted) and (posts.start[submitted] <= rows.start[others]).all():
        found[others] = submitted
    return found


def find_blocked(trace: Trace, busy: Intervals, transfers: Transfers) -> Intervals:
    """When the host waited for a transfer: stretches without an operator that end as one ends. A
    place in the program that waits once does so each time, even if the host then goes on late.
    """
    rows, operators = transfers.rows, trace.operators
    if not len(rows):
        return EMPTY
    active = busy.either(transfers.handed)
    whole = between(int(rows.start.min()), max(int(rows.end.max()), *_last(active)) + 1)
    seen = distinct(np.concatenate([operators.start, operators.end]))
    start, end = _split(whole.minus(active), seen)
    length = end - start
    at_once = np.maximum(_AT_ONCE_NS, (_AT_ONCE_SHARE * length).astype(np.int64))
    late = late_after(length)
    places = _places(operators, start, end)
    waited = _ends_with(rows, start, end, at_once)
    waited |= _ends_with(rows, start, end, late) & np.isin(places, places[waited])
    pending = union(rows.start, rows.end + int(late.max(initial=0)))
    return union(start[waited], end[waited]).both(pending)


def late_after(length: Ints) -> Ints:
    """By how much a host may go on late after waits of these lengths."""
    return np.asarray(np.clip((_LATE_SHARE * length).astype(np.int64), *_LATE_NS))


def _ends_with(rows: HostMessages, start: Ints, end: Ints, near: Ints) -> NDArray[np.bool_]:
    """Which stretches end near the end of a transfer that ended during them."""
    ends = np.sort(rows.end)
    last = np.searchsorted(ends, end + near, side="right") - 1
    nearest = ends[np.maximum(last, 0)]
    return np.asarray((last >= 0) & (nearest > start) & (end - nearest <= near))


def _places(operators: Marks, start: Ints, end: Ints) -> Ints:
    """Numbers of the operators before and after each stretch, as one number."""
    before = np.searchsorted(operators.start, start, side="right") - 1
    after = np.minimum(np.searchsorted(operators.start, end), len(operators) - 1)
    names = operators.name.astype(np.int64)
    return np.asarray((names[np.maximum(before, 0)] << 32) + names[after])


def _split(gaps: Intervals, seen: Ints) -> tuple[Ints, Ints]:
    """Stretches cut at these times."""
    inside = seen[gaps.contains(seen)]
    return (
        np.sort(np.concatenate([gaps.start, inside])),
        np.sort(np.concatenate([gaps.end, inside])),
    )


def _last(active: Intervals) -> tuple[int]:
    return (int(active.end[-1]) if len(active) else 0,)
