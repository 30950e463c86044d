"""Measurements of one device's memory: peaks, growth, fragmentation, retries and out-of-memory
events, by `device_memory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.memory.history import History, history_of, layout
from computeflow.telemetry.memory.memory_facts import (
    AllocationSite,
    Creep,
    DeviceMemory,
    Expandable,
    Fragmentation,
    MemoryPeak,
    OutOfMemory,
    Retries,
)
from computeflow.telemetry.memory.owners import OWNERS, owners_of
from computeflow.telemetry.memory.snapshot import Action, DeviceSnapshot, Ints, Snapshot
from computeflow.telemetry.memory.stacks import StackKind, site_of, stack_kind
from computeflow.telemetry.memory.steps import Steps, find_steps

_WARM_UP = 2
"""First steps, in which optimizers allocate their state and libraries their workspaces."""
_MIN_STEPS = 5
"""Fewest steps after the warm-up for a trend."""
_MAX_SITES = 10
_MAX_OOMS = 8
TOO_SMALL = (
    "free memory is in ranges smaller than the 20 MiB pages that expandable segments release"
)
_SIGMAS = 2.576
"""Standard deviations of a normal distribution for a 99 % interval."""
_SMALL_SEGMENT = 2 << 20
_MAX_POINTS = 1000
"""Most steps that a trend is fitted to: all pairs of them are compared."""


def device_memory(snapshot: Snapshot, device: DeviceSnapshot) -> DeviceMemory:
    return _Judging(snapshot, device).facts()


class _Judging:
    def __init__(self, snapshot: Snapshot, device: DeviceSnapshot) -> None:
        self.device = device
        self.settings = snapshot.settings
        self.stacks = snapshot.stacks
        self.history: History = history_of(device)
        kinds: Sequence[StackKind] = [stack_kind(stack) for stack in snapshot.stacks]
        self.steps: Steps = find_steps(snapshot, self.history, kinds)
        self.owners: NDArray[np.int8] = owners_of(self.history, self.steps, kinds)

    def facts(self) -> DeviceMemory:
        history, action = self.history, self.history.events.action
        times = history.events.time
        got = (action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_MAP)
        back = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
        known = len(times) > 0 and bool((times > 0).all()) and times[-1] >= times[0]
        return DeviceMemory(
            device=self.device.number,
            events=len(history),
            whole=history.complete,
            seconds=float(times[-1] - times[0]) / 1e6 if known else None,
            allocated_bytes=int(history.allocated[-1]),
            reserved_bytes=int(history.reserved[-1]),
            peak=self.peak(int(history.allocated.argmax())),
            peak_reserved_bytes=int(history.reserved.max()),
            steps=len(self.steps),
            steps_from=self.steps.known_from,
            fragmentation=self.fragmentation(),
            creep=self.creep(),
            out_of_memory=tuple(
                self.out_of_memory(int(at))
                for at in np.flatnonzero(action == Action.OOM)[:_MAX_OOMS]
            ),
            retries=self.retries(),
            segments_got=int(got.sum()),
            segments_given_back=int(back.sum()),
        )

    def seconds(self, event: int) -> float | None:
        if event >= len(self.history):
            return None
        time = int(self.history.events.time[event])
        return time / 1e6 if time > 0 else None

    def peak(self, event: int) -> MemoryPeak:
        """The memory allocated after an event, by owner and site."""
        pieces = self.history.allocations
        held = pieces.at(event)
        sizes = np.bincount(self.owners[held], weights=pieces.size[held], minlength=len(OWNERS))
        return MemoryPeak(
            seconds=self.seconds(event),
            allocated_bytes=int(self.history.allocated[event]),
            reserved_bytes=int(self.history.reserved[event]),
            owners={name: int(size) for name, size in zip(OWNERS, sizes, strict=True) if size},
            sites=self.sites(held),
        )

    def sites(self, rows: NDArray[np.bool_]) -> tuple[AllocationSite, ...]:
        """The sites in the code with the largest share of some allocations."""
        pieces = self.history.allocations
        totals: dict[tuple[str, int], list[int]] = {}
        for stack, owner, size in zip(
            pieces.stack[rows].tolist(),
            self.owners[rows].tolist(),
            pieces.size[rows].tolist(),
            strict=True,
        ):
            total = totals.setdefault((site_of(self.stacks[stack]), owner), [0, 0])
            total[0] += size
            total[1] += 1
        order = sorted(totals.items(), key=lambda item: -item[1][0])[:_MAX_SITES]
        return tuple(
            AllocationSite(where=where, owner=OWNERS[owner], bytes=size, count=count)
            for (where, owner), (size, count) in order
        )

    def fragmentation(self) -> Fragmentation | None:
        events = self.history.events
        grown = (events.action == Action.SEGMENT_ALLOC) | (events.action == Action.SEGMENT_MAP)
        grown &= events.size > _SMALL_SEGMENT
        if not grown.any():
            return None
        at = int(np.flatnonzero(grown)[-1])
        before = layout(self.history, at - 1)
        requests = np.flatnonzero(events.action[at:] == Action.ALLOC)
        return Fragmentation(
            seconds=self.seconds(at),
            reserved_bytes=int(self.history.reserved[at]),
            allocated_bytes=int(self.history.allocated[at]),
            split_bytes=int(before.holes.sum()),
            page_bytes=before.pages,
            cached_bytes=int(before.empty.sum()),
            largest_free_bytes=before.largest,
            wanted_bytes=int(events.size[at + requests[0]] if len(requests) else events.size[at]),
        )

    def creep(self) -> Creep | None:
        ends = self.steps.ends
        if len(ends) < _WARM_UP + _MIN_STEPS:
            return None
        level = self.history.allocated
        floors = np.array(
            [level[a:b].min() for a, b in pairwise(ends.tolist()) if b > a], np.float64
        )[_WARM_UP - 1 :]
        if len(floors) < _MIN_STEPS:
            return None
        slope, low, high = trend(floors)
        last = floors[-max(len(floors) // 3, 3) :]
        pieces = self.history.allocations
        recent = (pieces.born >= ends[_WARM_UP - 1]) & (pieces.born < ends[-2])
        return Creep(
            steps=len(floors),
            bytes_per_step=slope,
            low=low,
            high=high,
            floor_bytes=int(floors[-1]),
            still=bool(trend(last)[0] >= slope / 2),
            sites=self.sites(recent & (pieces.gone >= len(self.history))),
        )

    def out_of_memory(self, event: int) -> OutOfMemory:
        events, history = self.history.events, self.history
        requested, free = int(events.size[event]), int(events.device_free[event])
        before = layout(history, event)
        split, cached = int(before.holes.sum()), int(before.empty.sum())
        reserved = int(history.reserved[event])
        # under a process limit it may reserve its former maximum again; else what the device has left
        room = int(history.reserved[: event + 1].max()) - reserved
        if 0 <= free < requested:
            room = free
        verdict, why = _expandable(
            self.settings, requested, room, split + cached, before.pages + cached
        )
        return OutOfMemory(
            seconds=self.seconds(event),
            asked_bytes=requested,
            device_free_bytes=free if free >= 0 else None,
            allocated_bytes=int(history.allocated[event]),
            reserved_bytes=reserved,
            split_bytes=split,
            largest_free_bytes=before.largest,
            missing_bytes=max(requested - room - split - cached, 0),
            expandable=verdict,
            why=why,
            where=site_of(self.stacks[int(events.stack[event])]),
            owners=self.peak(event).owners,
        )

    def retries(self) -> Retries:
        """Runs of segments released right before one is reserved."""
        events = self.history.events
        freed = np.isin(events.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
        first = np.flatnonzero(freed & ~np.concatenate([[False], freed[:-1]]))
        last = np.flatnonzero(freed & ~np.concatenate([freed[1:], [False]]))
        count, size, micros, known = 0, 0, 0, True
        for start, end in zip(first.tolist(), last.tolist(), strict=True):
            then = int(events.action[end + 1]) if end + 1 < len(events) else Action.OTHER
            if then not in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
                continue  # the program emptied the cache, or no segment was reserved
            count += 1
            size += int(events.size[start : end + 1].sum())
            micros += int(events.time[end + 1] - events.time[start])
            known &= bool(0 < events.time[start] <= events.time[end + 1])
        return Retries(count=count, freed_bytes=size, seconds=micros / 1e6 if known else None)


def _expandable(
    settings: Mapping[str, str | float | bool], requested: int, room: int, free: int, pages: int
) -> tuple[Expandable, str]:
    """Whether expandable segments would have sufficed: they release free memory by whole pages."""
    if settings.get("expandable_segments") is True:
        return "already on", "expandable segments are on"
    if free + room < requested:
        return "no", "the total free memory is less than was requested"
    if pages + room < requested:
        return "no", TOO_SMALL
    return "yes", "enough is free in ranges of 20 MiB and more, which they can reuse"


def trend(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """The Theil-Sen slope: the median of the slopes between all pairs, with an interval of 99 %
    from the variance of Kendall's statistic (P. K. Sen, JASA 63 (1968) 1379-1389).
    """
    if len(values) > _MAX_POINTS:
        chosen = np.linspace(0, len(values) - 1, _MAX_POINTS).astype(np.int64)
    else:
        chosen = np.arange(len(values))
    first, second = np.triu_indices(len(chosen), 1)
    x: Ints = chosen
    slopes = np.sort((values[x[second]] - values[x[first]]) / (x[second] - x[first]))
    n, pairs = len(chosen), len(slopes)
    half = _SIGMAS * np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = int(np.clip(np.floor((pairs - half) / 2), 0, pairs - 1))
    high = int(np.clip(np.ceil((pairs + half) / 2), 0, pairs - 1))
    return float(np.median(slopes)), float(slopes[low]), float(slopes[high])
