"""What was allocated when: the history of a device, from its events and its last state.

A history may begin long after the program did (it is a ring), so everything is counted back from the
last state: what a snapshot shows in use and no event made was there before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.memory.snapshot import Action, Device, Events, Ints

_ROUND = 512
"""Bytes that the allocator rounds a block up to (kMinBlockSize of c10/cuda/CUDACachingAllocator.h)."""
PAGE = 20 << 20
"""What an expandable segment maps and gives back at once, for large blocks (kLargeBuffer, ibid.)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Allocations, or segments: a row each, in order of birth."""

    address: Ints
    size: Ints
    born: Ints
    """Event; -1 where it was there before the first one."""
    gone: Ints
    """Event that gave it up; the number of events (1 if there are none) where it is still there."""
    free: Ints
    """Event from which on its place can be used again."""
    stack: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.address)

    def at(self, event: int) -> NDArray[np.bool_]:
        """Which are held after an event."""
        return np.asarray((self.born <= event) & (self.gone > event))

    def occupying(self, event: int) -> NDArray[np.bool_]:
        return np.asarray((self.born <= event) & (self.free > event))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where memory was free at one moment."""

    holes: Ints
    """Bytes of each free place in a segment that is in use elsewhere."""
    empty: Ints
    """Bytes of each segment with nothing in it: the allocator can give it back."""
    pages: int
    """Bytes of the holes that expandable segments could give back."""

    @property
    def largest(self) -> int:
        return int(max(self.holes.max(initial=0), self.empty.max(initial=0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    events: Events
    allocations: Pieces
    segments: Pieces
    mapped: tuple[tuple[int, int], ...]
    """Address and size of expandable segments at the end."""
    allocated: Ints
    """Bytes after each event."""
    reserved: Ints
    complete: bool
    """Nothing was there before the first event."""

    def __len__(self) -> int:
        return len(self.events)


def history_of(device: Device) -> History:
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
    events: Events,
    last: dict[int, tuple[int, int]],
    opens: Action,
    closes: Action,
    frees: Action,
    unit: int,
) -> Pieces:
    """`last`: size and stack by address, of what is there at the end."""
    count = max(len(events), 1)  # without a history, the snapshot is its one moment
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
            open_[address] = made = [address, size, at, count, count, stack]
            rows.append(made)
            continue
        row = open_.pop(address, None) or closed.pop(address, None)
        if row is None:  # made before the first event
            row = [address, size, -1, count, count, 0]
            rows.append(row)
        row[3] = min(row[3], at)
        if action == frees:
            row[4] = at
        else:
            closed[address] = row
    for address, (size, stack) in last.items():
        if address in open_:
            open_[address][1] = size  # as it was really cut
        elif address not in closed:
            rows.append([address, size, -1, count, count, stack])
    table = np.array(rows, np.int64).reshape(len(rows), 6)
    table = table[np.argsort(table[:, 2], kind="stable")]
    return Pieces(
        address=table[:, 0].copy(),
        size=table[:, 1].copy(),
        born=table[:, 2].copy(),
        gone=table[:, 3].copy(),
        free=table[:, 4].copy(),
        stack=table[:, 5].astype(np.int32),
    )


def _curve(pieces: Pieces, count: int) -> Ints:
    """Bytes after each event; without events, the one moment of the snapshot."""
    change = np.zeros(max(count, 1) + 1, np.int64)
    np.add.at(change, np.maximum(pieces.born, 0), pieces.size)
    np.add.at(change, np.minimum(pieces.gone, max(count, 1)), -pieces.size)
    return np.asarray(np.cumsum(change)[:-1])


def _mapped_curve(events: Events, mapped: tuple[tuple[int, int], ...]) -> Ints:
    sign = (events.action == Action.SEGMENT_MAP).astype(np.int64)
    sign -= events.action == Action.SEGMENT_UNMAP
    change = np.cumsum(sign * events.size) if len(events) else np.zeros(1, np.int64)
    return np.asarray(change - change[-1] + sum(size for _, size in mapped))


def layout(history: History, event: int) -> Layout:
    """After an event."""
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
        found = free > 0
        holes += free[found].tolist()
        # a page can go where nothing in it is in use; where pages begin, an expandable segment knows
        base = edges[found] - (address if expandable else edges[found])
        first = -(-base // PAGE) * PAGE
        pages += int(np.maximum((base + free[found] - first) // PAGE * PAGE, 0).sum())
    return Layout(holes=np.array(holes, np.int64), empty=np.array(empty, np.int64), pages=pages)


def _segments(history: History, event: int) -> list[tuple[int, int, bool]]:
    """Address, size and whether it can grow, of every segment after an event."""
    held = history.segments.at(event)
    pairs = zip(history.segments.address[held], history.segments.size[held], strict=True)
    found = [(int(address), int(size), False) for address, size in pairs]
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
    for place, depth in zip(points.tolist(), covered.tolist(), strict=True):
        if depth > 0 and begun is None:
            begun = place
        elif depth <= 0 and begun is not None:
            if place > begun:
                found.append((begun, place - begun, True))
            begun = None
    return found
