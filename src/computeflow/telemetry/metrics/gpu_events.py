"""Events of GPUs in the samples: Xids, AMD's field errors, throttling, ECC errors, remapped rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from computeflow.telemetry.metrics.exporter_fields import SETTINGS
from computeflow.telemetry.metrics.gpu_activity import ActivityTimeline, reason_flags, stretches
from computeflow.telemetry.metrics.samples import SampledDevice, SampledFleet
from computeflow.telemetry.source_reports import Event
from computeflow.units import format_seconds

MAX_EVENTS = 1000
_MAX_PER_KIND = 20
_APART = 300.0
_COUNTERS = {
    "ecc_uncorrected": ("ecc uncorrected", True),
    "rows_uncorrected": ("row remapped", False),
    "remap_failure": ("row remap failed", True),
    "pcie_replays": ("pcie replays", False),
}


def happenings(
    fleet: SampledFleet, lines: Sequence[ActivityTimeline]
) -> tuple[list[Event], list[str]]:
    """Events in order of time, those without one first; and how many were left out, in words."""
    events: list[Event] = []
    for device in fleet.gpus.values():
        events += _codes(fleet, device, "xid") + _codes(fleet, device, "afid")
        events += _increases(fleet, device)
    left_out = 0
    for line in lines:
        if line.timed:
            throttled, more = _throttled(fleet, line)
            events += throttled
            left_out += more
    events.sort(
        key=lambda event: (event.seconds is not None, event.seconds or 0.0, event.node, event.gpu)
    )
    faults = [event for event in events if event.fault][:MAX_EVENTS]
    rest = [event for event in events if not event.fault][: MAX_EVENTS - len(faults)]
    left_out += len(events) - len(faults) - len(rest)
    kept = {id(event) for event in (*faults, *rest)}
    words = [f"{left_out:,} events beyond the first {MAX_EVENTS:,}"] if left_out else []
    return [event for event in events if id(event) in kept], words


def _throttled(fleet: SampledFleet, line: ActivityTimeline) -> tuple[list[Event], int]:
    """Times at which a reason held the clock down, and how many more are left out."""
    events: list[Event] = []
    left_out = 0
    for reason, flags in (reason_flags(line) or {}).items():
        runs = _joined(stretches(line, flags))
        left_out += max(len(runs) - _MAX_PER_KIND, 0)
        events += [
            _event(
                fleet,
                line.device,
                start,
                f"throttled: {reason}",
                f"for {format_seconds(seconds)}",
                fault=reason not in SETTINGS,
            )
            for start, seconds in runs[:_MAX_PER_KIND]
        ]
    return events, left_out


def _joined(runs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Stretches joined that are less than `_APART` apart: a reason that comes and goes is one event."""
    joined: list[tuple[float, float]] = []
    for start, seconds in runs:
        if joined and start - sum(joined[-1]) < _APART:
            joined[-1] = (joined[-1][0], start + seconds - joined[-1][0])
        else:
            joined.append((start, seconds))
    return joined


def _codes(fleet: SampledFleet, device: SampledDevice, name: str) -> list[Event]:
    """Events of a gauge that holds the last code: when it changed, or before the first sample."""
    series = device.series(name)
    events = []
    before = 0.0
    for index, (seconds, value) in enumerate(zip(series.times, series.values, strict=True)):
        if value != before and value > 0:
            known = index > 0 and not np.isnan(seconds)
            detail = "" if known else "at the first sample: its time is unknown"
            events.append(
                _event(
                    fleet,
                    device,
                    float(seconds) if known else None,
                    f"{name} {int(value)}",
                    detail,
                    fault=True,
                )
            )
        before = value
    return events[-_MAX_PER_KIND:]


def _increases(fleet: SampledFleet, device: SampledDevice) -> list[Event]:
    events = []
    for name, (what, fault) in _COUNTERS.items():
        series = device.series(name)
        if len(series) < 2:
            continue
        increases = np.diff(series.values)
        for index in np.flatnonzero(increases > 0)[:_MAX_PER_KIND]:
            when = float(series.times[index + 1])
            events.append(
                _event(
                    fleet,
                    device,
                    None if np.isnan(when) else when,
                    what,
                    f"{increases[index]:g} more",
                    fault=fault,
                )
            )
    return events


def _event(
    fleet: SampledFleet,
    device: SampledDevice,
    seconds: float | None,
    what: str,
    detail: str,
    *,
    fault: bool,
) -> Event:
    holders = fleet.names_of(device)
    return Event(
        seconds=seconds,
        what=what,
        node=device.node,
        gpu=device.gpu or device.uuid,
        job=holders[0] if len(holders) == 1 else "",
        detail=detail,
        fault=fault,
    )
