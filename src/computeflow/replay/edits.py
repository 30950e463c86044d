"""Edits of a step graph: what a remedy would change, as durations that are shorter or gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from computeflow.replay.engine import Durations, Floats
from computeflow.telemetry.traces.step_graph import StepGraph

Rows = NDArray[np.bool_]
Edit = Callable[[StepGraph, Durations], Durations]
"""The durations as they would be with a change."""


def without_host_time(removed: Floats) -> Edit:
    """Host time before each call, in recorded nanoseconds, that is no longer spent; or as much of the
    gap as it had when recorded, where that is more.
    """

    def edit(graph: StepGraph, now: Durations) -> Durations:
        share = removed / np.maximum(graph.line.gap, 1)
        return replace(now, gap=np.maximum(now.gap - np.maximum(removed, share * now.gap), 0.0))

    return edit


def without_waits(calls: Rows) -> Edit:
    """Calls that neither wait nor are made."""

    def edit(graph: StepGraph, now: Durations) -> Durations:
        return replace(now, waits=now.waits & ~calls, cost=np.where(calls, 0.0, now.cost))

    return edit


def without_calls(calls: Rows) -> Edit:
    """Calls that are gone with the host time before them and with their work."""

    def edit(graph: StepGraph, now: Durations) -> Durations:
        launched = graph.device.call
        gone = (launched >= 0) & calls[np.maximum(launched, 0)]
        return replace(
            now,
            gap=np.where(calls, 0.0, now.gap),
            cost=np.where(calls, 0.0, now.cost),
            waits=now.waits & ~calls,
            device=np.where(gone, np.nan, now.device),
        )

    return edit


def with_device_times(rows: Rows, factor: float | Floats, floor: float = 0.0) -> Edit:
    """Work of the device that takes another time: a factor on what is above a floor."""

    def edit(graph: StepGraph, now: Durations) -> Durations:
        least = np.minimum(floor, now.device)
        changed = least + (now.device - least) * factor
        return replace(now, device=np.where(rows, changed, now.device))

    return edit


def with_host_times(calls: Rows, factor: float) -> Edit:
    """Host time of these calls and before them, without real stalls, times a factor."""

    def edit(graph: StepGraph, now: Durations) -> Durations:
        free = np.minimum(graph.line.free, now.gap)
        return replace(
            now,
            gap=np.where(calls, free + (now.gap - free) * factor, now.gap),
            cost=np.where(calls, now.cost * factor, now.cost),
            release=np.where(calls, now.release * factor, now.release),
        )

    return edit


def all_of(edits: Iterable[Edit]) -> Edit:
    """Edits one after the other."""
    edits = tuple(edits)

    def edit(graph: StepGraph, now: Durations) -> Durations:
        for each in edits:
            now = each(graph, now)
        return now

    return edit


def with_merged_work(rows: Rows, factor: float) -> Edit:
    """Work that one kernel in each step does, in a factor of its time; its other launches are gone."""

    def edit(graph: StepGraph, now: Durations) -> Durations:
        device, line = graph.device, graph.line
        step = np.where(rows, line.step[np.maximum(device.call, 0)], -1)
        gone = np.zeros(len(line), bool)
        times = now.device.copy()
        for number in range(graph.steps):
            mine = np.flatnonzero((step == number) & ~np.isnan(now.device))
            if not len(mine):
                continue
            times[mine[0]] = factor * float(now.device[mine].sum())
            gone[device.call[mine]] = True
            gone[device.call[mine[0]]] = False
        merged = without_calls(gone)(graph, now)
        return replace(merged, device=np.where(np.isnan(merged.device), np.nan, times))

    return edit
