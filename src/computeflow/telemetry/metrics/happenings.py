"""What happened to GPUs at a moment: Xids, AMD's field errors, throttling, ECC errors, lost rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from computeflow.telemetry.metrics.fields import SETTINGS
from computeflow.telemetry.metrics.measure import Timeline, reason_flags, stretches
from computeflow.telemetry.metrics.samples import Device, Fleet
from computeflow.telemetry.observed import Happening
from computeflow.units import format_seconds

MOST = 1000
_MOST_OF_ONE = 20
_APART = 300.0
_COUNTERS = {
    "ecc_uncorrected": ("ecc uncorrected", True),
    "rows_uncorrected": ("row remapped", False),
    "remap_failure": ("row remap failed", True),
    "pcie_replays": ("pcie replays", False),
}


def happenings(fleet: Fleet, lines: Sequence[Timeline]) -> tuple[list[Happening], list[str]]:
    """In order of time, those without one first; how many were left out, in words."""
    found: list[Happening] = []
    for device in fleet.gpus.values():
        found += _codes(fleet, device, "xid") + _codes(fleet, device, "afid")
        found += _grown(fleet, device)
    left_out = 0
    for line in lines:
        if line.timed:
            throttled, more = _throttled(fleet, line)
            found += throttled
            left_out += more
    found.sort(key=lambda one: (one.seconds is not None, one.seconds or 0.0, one.node, one.gpu))
    faults = [one for one in found if one.fault][:MOST]
    rest = [one for one in found if not one.fault][: MOST - len(faults)]
    left_out += len(found) - len(faults) - len(rest)
    kept = {id(one) for one in (*faults, *rest)}
    words = [f"{left_out:,} happenings beyond the first {MOST:,}"] if left_out else []
    return [one for one in found if id(one) in kept], words


def _throttled(fleet: Fleet, line: Timeline) -> tuple[list[Happening], int]:
    """When a reason held the clock down; and how many more times it did."""
    found: list[Happening] = []
    left_out = 0
    for reason, flags in (reason_flags(line) or {}).items():
        runs = _joined(stretches(line, flags))
        left_out += max(len(runs) - _MOST_OF_ONE, 0)
        found += [
            _happening(
                fleet,
                line.device,
                start,
                f"throttled: {reason}",
                f"for {format_seconds(seconds)}",
                fault=reason not in SETTINGS,
            )
            for start, seconds in runs[:_MOST_OF_ONE]
        ]
    return found, left_out


def _joined(runs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """One of those less than `_APART` apart: a reason that comes and goes is one happening."""
    joined: list[tuple[float, float]] = []
    for start, seconds in runs:
        if joined and start - sum(joined[-1]) < _APART:
            joined[-1] = (joined[-1][0], start + seconds - joined[-1][0])
        else:
            joined.append((start, seconds))
    return joined


def _codes(fleet: Fleet, device: Device, name: str) -> list[Happening]:
    """A gauge of the last code: it happened when the gauge changed, before that if it never did."""
    series = device.series(name)
    found = []
    before = 0.0
    for place, (seconds, value) in enumerate(zip(series.times, series.values, strict=True)):
        if value != before and value > 0:
            known = place > 0 and not np.isnan(seconds)
            detail = "" if known else "at the first sample: when is not known"
            found.append(
                _happening(
                    fleet,
                    device,
                    float(seconds) if known else None,
                    f"{name} {int(value)}",
                    detail,
                    fault=True,
                )
            )
        before = value
    return found[-_MOST_OF_ONE:]


def _grown(fleet: Fleet, device: Device) -> list[Happening]:
    found = []
    for name, (what, fault) in _COUNTERS.items():
        series = device.series(name)
        grown = np.diff(series.values)
        for place in np.flatnonzero(grown > 0)[:_MOST_OF_ONE]:
            when = float(series.times[place + 1])
            found.append(
                _happening(
                    fleet,
                    device,
                    None if np.isnan(when) else when,
                    what,
                    f"{grown[place]:g} more",
                    fault=fault,
                )
            )
    return found


def _happening(
    fleet: Fleet, device: Device, seconds: float | None, what: str, detail: str, *, fault: bool
) -> Happening:
    holders = fleet.names_of(device)
    return Happening(
        seconds=seconds,
        what=what,
        node=device.node,
        gpu=device.gpu or device.uuid,
        job=holders[0] if len(holders) == 1 else "",
        detail=detail,
        fault=fault,
    )
