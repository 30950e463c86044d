"""History of a device's memory: what was allocated when, from its events and its last state.

A history may begin long after the program did (it is a ring), so everything is counted back from
the last state: what a snapshot shows in use without an event that allocated it was there before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.memory.snapshot import Action, AllocatorEvents, DeviceSnapshot, Ints

_ROUND = 512
"""Bytes to which the allocator rounds a block up (kMinBlockSize of
c10/cuda/CUDACachingAllocator.h)."""
PAGE = 20 << 20
"""Bytes that an expandable segment maps and releases at once, for large blocks (kLargeBuffer,
ibid.)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Allocations, or segments, one row each, in order of allocation."""

    address: Ints
    size: Ints
    born: Ints
    """Index of the event that allocated it; -1 where it was there before the first one."""
    gone: Ints
    """Index of the event that freed it; the number of events (1 if there are none) where it is
    still there."""
    free: Ints
    """Index of the event after which its address range can be used again."""
    stack: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.address)

    def at(self, event: int) -> NDArray[np.bool_]:
        """The rows that are held after an event, as a mask."""
        return np.asarray((self.born <= event) & (self.gone > event))

    def occupying(self, event: int) -> NDArray[np.bool_]:
        return np.asarray((self.born <= event) & (self.free > event))


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeMemory:
    """Free memory at one moment."""

    holes: Ints
    """Bytes of each free range in a segment that is otherwise in use."""
    empty: Ints
    """Bytes of each segment with nothing in it, which the allocator can release."""
    pages: int
    """Bytes of the holes that expandable segments could release."""

    @property
    def largest(self) -> int:
        return int(max(self.holes.max(initial=0), self.empty.max(initial=0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    events: AllocatorEvents
    allocations: Lifetimes
    segments: Lifetimes
    mapped: tuple[tuple[int, int], ...]
    """Address and size of expandable segments at the end."""
    allocated: Ints
    """Allocated bytes after each event."""
    reserved: Ints
    complete: bool
    """Whether nothing was allocated before the first event."""

    def __len__(self) -> int:
        return len(self.events)


def history_of(device: DeviceSnapshot) -> History:
    events = device.events
    blocks = {b.address: (b.size, b.stack) for b in device.blocks}
    allocations = _pieces(
        events, blocks, Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, _ROUND
    )
    own = {s.address: (s.size, s.frames) for s in device.segments if not s.expandable}
    segments = _pieces(
        events, own, Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_FREE, 1
    )
    mapped = tuple((s.address, s.size) for s in device.segments if s.expandable)
    reserved = _curve(segments, len(events)) + _mapped_curve(events, mapped)
    before = bool((allocations.born < 0).any() or (segments.born < 0).any())
    return History(
        events=events,
        allocations=allocations,
        segments=segments,
        mapped=mapped,
        allocated=_curve(allocations, len(events)),
        reserved=reserved,
        complete=len(events) > 0 and not before,
    )


def _pieces(
    events: AllocatorEvents,
    last: dict[int, tuple[int, int]],
    opens: Action,
    closes: Action,
    frees: Action,
    unit: int,
) -> Lifetimes:
    """Rows from the events; `last` has size and stack by address of what is there at the end."""
    count = max(len(events), 1)  # without a history, the snapshot is the only moment
    rows: list[list[int]] = []
    open_: dict[int, list[int]] = {}
    closed: dict[int, list[int]] = {}
    sizes = -(-np.maximum(events.size, 1) // unit) * unit
    chosen = np.flatnonzero(np.isin(events.action, np.array([opens, closes, frees], np.int8)))
    columns = (events.action, events.address, sizes, events.stack)
    for at, action, address, size, stack in zip(
        chosen.tolist(), *(column[chosen].tolist() for column in columns), strict=True
    ):
        if action == opens:
            open_[address] = opened = [address, size, at, count, count, stack]
            rows.append(opened)
            continue
        row = open_.pop(address, None) or closed.pop(address, None)
        if row is None:  # allocated before the first event
            row = [address, size, -1, count, count, 0]
            rows.append(row)
        row[3] = min(row[3], at)
        if action == frees:
            row[4] = at
        else:
            closed[address] = row
    for address, (size, stack) in last.items():
        if address in open_:
            open_[address][1] = size  # the real size of the block
        elif address not in closed:
            rows.append([address, size, -1, count, count, stack])
    table = np.array(rows, np.int64).reshape(len(rows), 6)
    table = table[np.argsort(table[:, 2], kind="stable")]
    return Lifetimes(
        address=table[:, 0].copy(),
        size=table[:, 1].copy(),
        born=table[:, 2].copy(),
        gone=table[:, 3].copy(),
        free=table[:, 4].copy(),
        stack=table[:, 5].astype(np.int32),
    )


def _curve(pieces: Lifetimes, count: int) -> Ints:
    """Bytes after each event; without events, the one moment of the snapshot."""
    change = np.zeros(max(count, 1) + 1, np.int64)
    np.add.at(change, np.maximum(pieces.born, 0), pieces.size)
    np.add.at(change, np.minimum(pieces.gone, max(count, 1)), -pieces.size)
    return np.asarray(np.cumsum(change)[:-1])


def _mapped_curve(events: AllocatorEvents, mapped: tuple[tuple[int, int], ...]) -> Ints:
    sign = (events.action == Action.SEGMENT_MAP).astype(np.int64)
    sign -= events.action == Action.SEGMENT_UNMAP
    change = np.cumsum(sign * events.size) if len(events) else np.zeros(1, np.int64)
    return np.asarray(change - change[-1] + sum(size for _, size in mapped))


def layout(history: History, event: int) -> FreeMemory:
    """Free memory after an event."""
    ranges = _segments(history, event)
    live = history.allocations.occupying(event)
    start = history.allocations.address[live]
    order = np.argsort(start, kind="stable")
    start = start[order]
    end = start + history.allocations.size[live][order]
    holes: list[int] = []
    empty: list[int] = []
    pages = 0
    for address, size, expandable in ranges:
        low, high = np.searchsorted(start, [address, address + size])
        if low == high:
            empty.append(size)
            continue
        edges = np.concatenate([[address], end[low:high]])
        until = np.concatenate([start[low:high], [address + size]])
        free = until - edges
        positive = free > 0
        holes += free[positive].tolist()
        # a page can be released where it is all free; only expandable segments have fixed pages
        base = edges[positive] - (address if expandable else edges[positive])
        first = -(-base // PAGE) * PAGE
        pages += int(np.maximum((base + free[positive] - first) // PAGE * PAGE, 0).sum())
    return FreeMemory(holes=np.array(holes, np.int64), empty=np.array(empty, np.int64), pages=pages)


def _segments(history: History, event: int) -> list[tuple[int, int, bool]]:
    """Address, size and whether it can grow, of every segment after an event."""
    held = history.segments.at(event)
    pairs = zip(history.segments.address[held], history.segments.size[held], strict=True)
    segments = [(int(address), int(size), False) for address, size in pairs]
    events = history.events
    later = np.arange(len(events)) > event
    sign = (events.action == Action.SEGMENT_UNMAP).astype(np.int64)
    sign -= events.action == Action.SEGMENT_MAP
    rows = np.flatnonzero(later & (sign != 0))
    start = np.concatenate(
        [np.array([a for a, _ in history.mapped], np.int64), events.address[rows]]
    )
    size = np.concatenate([np.array([s for _, s in history.mapped], np.int64), events.size[rows]])
    sign = np.concatenate([np.ones(len(history.mapped), np.int64), sign[rows]])
    points = np.concatenate([start, start + size])
    order = np.argsort(points, kind="stable")
    points, covered = points[order], np.cumsum(np.concatenate([sign, -sign])[order])
    begun = None
    for position, depth in zip(points.tolist(), covered.tolist(), strict=True):
        if depth > 0 and begun is None:
            begun = position
        elif depth <= 0 and begun is not None:
            if position > begun:
                segments.append((begun, position - begun, True))
            begun = None
    return segments
