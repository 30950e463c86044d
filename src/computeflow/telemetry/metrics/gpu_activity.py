"""Figures of every GPU and node from its samples.

A sample stands from its moment to the next one, or for one usual interval where the next is more
than three of them away; what lies between is not observed. Samples without times have equal weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from computeflow.catalog import Catalog
from computeflow.telemetry.metrics.exporter_fields import (
    ACTIVITY,
    NOT_SLOWING,
    SETTINGS,
    reasons_of,
)
from computeflow.telemetry.metrics.gpu_facts import (
    IDLE_SECONDS,
    ActivitySummary,
    Busy,
    GpuFigures,
    Idle,
    IdleStretch,
    NodeFigures,
)
from computeflow.telemetry.metrics.samples import Floats, SampledDevice, SampledFleet, Series

Flags = NDArray[np.bool_]
_HELD_BYTES = 2.0**30
"""More device memory than a driver takes for itself: somebody holds the GPU."""
BUSY = 0.5
"""Least utilisation at which a clock counts as that of a busy GPU; below, clocks fall anyway."""
_IDLE_SAMPLES = 3
"""Fewer idle samples in a row may miss something that ran between them."""
_USUAL = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityTimeline:
    """A GPU's samples of activity, each with the time it stands for."""

    device: SampledDevice
    signal: str
    """The signal that was read: utilisation, else engine or SM activity."""
    times: Floats
    seconds: Floats
    active: Floats
    workload: NDArray[np.int64]
    held: Flags
    """Whether a label names a holder, the memory is in use, or something ran."""
    known: Flags
    """Whether it is known if somebody holds the GPU."""
    reach: float
    step: float

    @property
    def timed(self) -> bool:
        return bool(len(self.times) > 1 and not np.isnan(self.times[0]))

    @property
    def idle(self) -> Flags:
        return np.asarray((self.active <= 0) & self.held)

    def value(self, name: str) -> Floats:
        """Another series at the times of this one."""
        series = self.device.series(name)
        if self.timed and len(series) and not np.isnan(series.times[0]):
            return series.at(self.times, self.reach)
        if len(series) == len(self.times):
            return series.values
        return np.full(len(self.times), np.nan)


def cover(times: Floats) -> tuple[Floats, float, float]:
    """Seconds that each sample stands for, the usual interval, and the longest valid age."""
    if len(times) < 2 or np.isnan(times[0]):
        return np.zeros(len(times)), 0.0, 0.0
    gaps = np.diff(times)
    usual = float(np.median(gaps))
    reach = max(_USUAL * usual, 1.0)
    return np.append(np.where(gaps <= reach, gaps, usual), 0.0), usual, reach


def timeline(device: SampledDevice, *, labelled: bool) -> ActivityTimeline | None:
    """A GPU's timeline; None without activity. `labelled`: labels on its node name the holders."""
    signal = next((name for name in ACTIVITY if len(device.series(name))), None)
    if signal is None:
        return None
    series = device.series(signal)
    seconds, step, reach = cover(series.times)
    active = series.values
    if signal != "utilisation":
        active = np.where(active < 0.005, 0.0, active)  # what rounds to 0 % utilisation
    workload = device.series(f"held:{signal}").values.astype(np.int64)
    held = (workload > 0) | (active > 0)
    line = ActivityTimeline(
        device=device,
        signal=signal,
        times=series.times,
        seconds=seconds,
        active=active,
        workload=workload,
        held=held,
        known=held,
        reach=reach,
        step=step,
    )
    memory = line.value("memory_used")
    held = held | (memory > _HELD_BYTES)
    if not labelled:
        held = _without_pauses(line, held)
    return replace(line, held=held, known=held | labelled | ~np.isnan(memory))


def _without_pauses(line: ActivityTimeline, held: Flags) -> Flags:
    """Held samples, and gaps shorter than `IDLE_SECONDS` between two of them."""
    held = held.copy()
    for run in runs(line, ~held):
        inside = run[0] > 0 and run[-1] < len(held) - 1
        if inside and held[run[0] - 1] and held[run[-1] + 1]:
            held[run] = line.seconds[run].sum() < IDLE_SECONDS
    return held


def runs(line: ActivityTimeline, chosen: Flags) -> list[NDArray[np.intp]]:
    """Indices of chosen samples that follow each other; a gap in the samples ends a run."""
    indices = np.flatnonzero(chosen)
    if not len(indices):
        return []
    broken = (np.diff(indices) > 1) | (np.diff(line.times[indices]) > line.reach)
    return np.split(indices, np.flatnonzero(broken) + 1)


def stretches(line: ActivityTimeline, chosen: Flags) -> list[tuple[float, float]]:
    """Runs of chosen samples as (start, seconds); a gap in the samples ends one."""
    return [
        (float(line.times[run[0]]), float(line.seconds[run].sum())) for run in runs(line, chosen)
    ]


def timelines(fleet: SampledFleet) -> list[ActivityTimeline]:
    labelled = {device.node for device in fleet.gpus.values() if device.workloads}
    lines = (timeline(device, labelled=device.node in labelled) for device in fleet.gpus.values())
    return [line for line in lines if line is not None]


def _joules_until(device: SampledDevice) -> tuple[Series, str]:
    """Energy since the first sample, by time: the device's counter, else its power integrated."""
    counter = device.series("energy")
    if len(counter) > 1 and not np.isnan(counter.times[0]):
        grown = np.maximum(np.diff(counter.values), 0.0)  # a counter that falls was set back
        return Series(counter.times, np.append(0.0, np.cumsum(grown))), "energy counter"
    power = device.series("power")
    if len(power) > 1 and not np.isnan(power.times[0]):
        gaps = np.diff(power.times)
        _, _, reach = cover(power.times)
        means = (power.values[1:] + power.values[:-1]) / 2
        grown = np.where(gaps <= reach, gaps * means, np.nan)
        if not np.isnan(grown).any():
            return Series(power.times, np.append(0.0, np.cumsum(grown))), "power readings"
    return Series(np.zeros(0), np.zeros(0)), ""


def energy_of_samples(line: ActivityTimeline, chosen: Flags) -> float | None:
    """Energy of the chosen samples' time; None where power was not read throughout."""
    energy, _ = _joules_until(line.device)
    start, end = line.times[chosen], (line.times + line.seconds)[chosen]
    if not len(energy) or (len(start) and not _spans(energy, start[0], end[-1], line.step)):
        return None
    parts = np.interp(end, energy.times, energy.values) - np.interp(
        start, energy.times, energy.values
    )
    return float(parts.sum())


def _spans(energy: Series, start: float, end: float, slack: float) -> bool:
    return bool(energy.times[0] <= start + slack and energy.times[-1] >= end - slack)


def reason_flags(line: ActivityTimeline) -> dict[str, Flags] | None:
    """The samples that show each reason for a low clock; None without a signal."""
    by_reason: dict[str, Flags] = {}
    has_signal = False
    masks = line.value("reasons")
    if not np.isnan(masks).all():
        has_signal = True
        for mask in np.unique(masks[~np.isnan(masks)]):
            for name in reasons_of(float(mask)):
                flags = by_reason.setdefault(name, np.zeros(len(masks), bool))
                flags |= masks == mask
    for track in line.device.names("grows"):
        values = line.value(track)
        has_signal = has_signal or not np.isnan(values).all()
        grew = np.append(np.diff(values) > 0, False)
        _mark(by_reason, track, grew)
    for track in line.device.names("above"):
        values = line.value(track)
        has_signal = has_signal or not np.isnan(values).all()
        _mark(by_reason, track, values > 0)
    return {k: v for k, v in by_reason.items() if k not in NOT_SLOWING} if has_signal else None


def _mark(by_reason: dict[str, Flags], track: str, flags: Flags) -> None:
    if flags.any():
        name = track.partition(":")[2]
        by_reason[name] = by_reason.get(name, np.zeros(len(flags), bool)) | flags


def mean(values: Floats, weights: Floats) -> float | None:
    """Mean weighted by time; unweighted where no time passed."""
    known = ~np.isnan(values)
    if not known.any():
        return None
    weights = weights[known]
    whole = weights.sum()
    if whole <= 0:
        return float(values[known].mean())
    return float((values[known] * weights).sum() / whole)


def _activity_of(fleet: SampledFleet, line: ActivityTimeline) -> ActivitySummary:
    return ActivitySummary(
        signal=line.signal,
        span_seconds=float(line.times[-1] - line.times[0]) if line.timed else None,
        holder_unknown=bool((~line.known & (line.active <= 0)).any()),
        idle=_idle(fleet, line) if line.timed else None,
        busy=_busy(line),
        busy_by_holder=_busy_by_holder(fleet, line) if line.timed else {},
    )


def _idle(fleet: SampledFleet, line: ActivityTimeline) -> Idle | None:
    shortest = max(IDLE_SECONDS, _IDLE_SAMPLES * line.step)
    long = [
        IdleStretch(start=start, seconds=seconds, holder=fleet.workloads[holder])
        for holder in np.unique(line.workload[line.idle])
        for start, seconds in stretches(line, line.idle & (line.workload == holder))
        if seconds >= shortest
    ]
    if not long:
        return None
    memory, power = line.value("memory_used")[line.idle], line.value("power")[line.idle]
    return Idle(
        seconds=sum(one.seconds for one in long),
        longest_seconds=max(one.seconds for one in long),
        stretches=tuple(sorted(long, key=lambda one: one.start)),
        holders=tuple(sorted(fleet.workloads[i] for i in np.unique(line.workload[line.idle]) if i)),
        memory_most_bytes=None if np.isnan(memory).all() else float(np.nanmax(memory)),
        power_watts=None if np.isnan(power).all() else float(np.nanmean(power)),
    )


def _busy_by_holder(fleet: SampledFleet, line: ActivityTimeline) -> dict[str, Busy]:
    """Busy time under each holder; empty for fewer than two of them."""
    holders = [int(holder) for holder in np.unique(line.workload) if holder]
    if len(holders) < 2:
        return {}
    parts = {fleet.workloads[one]: _busy(line, line.workload == one) for one in holders}
    return {name: busy for name, busy in parts.items() if busy is not None}


def _busy(line: ActivityTimeline, among: Flags | None = None) -> Busy | None:
    """Busy time, `among` these samples; None where no clock was sampled while busy."""
    clock, at_work = line.value("clock"), line.active >= BUSY
    if among is not None:
        at_work = at_work & among
    chosen = at_work & ~np.isnan(clock)
    seconds = np.where(chosen, line.seconds, 0.0)
    usual = mean(np.where(chosen, clock, np.nan), seconds)
    if usual is None:
        return None
    weights, flags = np.where(at_work, line.seconds, 0.0), reason_flags(line)
    return Busy(
        seconds=float(seconds.sum()),
        samples=int(chosen.sum()),
        clock_hertz=usual,
        power_watts=mean(np.where(at_work, line.value("power"), np.nan), weights),
        reasons=None
        if flags is None
        else {name: mean(shown.astype(float), weights) or 0.0 for name, shown in flags.items()},
        slowed=_slowed(line, at_work, flags or {}),
    )


def _slowed(
    line: ActivityTimeline, at_work: Flags, flags: Mapping[str, Flags]
) -> tuple[tuple[float, float], ...]:
    """Times at work at which the device gave a reason, settings aside."""
    given = [shown for name, shown in flags.items() if name not in SETTINGS]
    if not given or not line.timed:
        return ()
    shown = at_work & np.logical_or.reduce(given)
    return tuple((start, start + seconds) for start, seconds in stretches(line, shown))


def gpu_figures(
    fleet: SampledFleet, device: SampledDevice, line: ActivityTimeline | None, catalog: Catalog
) -> GpuFigures:
    row = catalog.accelerators.get(device.model) if device.model else None
    activity = _activity_of(fleet, line) if line else None
    clock = activity.busy.clock_hertz if activity and activity.busy else None
    tensor = _mean_of(device, "tensor_active")
    upper = tensor
    if tensor is not None and clock and row is not None and row.clock_hertz:
        upper = tensor * clock / row.clock_hertz
    energy, joules_from = _joules_until(device)
    flags = reason_flags(line) if line else None
    seconds = float(line.seconds.sum()) if line and line.timed else None
    weights = line.seconds if line and seconds else None
    return GpuFigures(
        node=device.node,
        gpu=device.gpu,
        uuid=device.uuid,
        model=device.model,
        accelerator=row.name if row else None,
        workloads=fleet.names_of(device),
        samples=max((len(device.series(name)) for name in device.tracks), default=0),
        observed_seconds=seconds,
        utilisation=_mean_of(device, "utilisation"),
        sm_active=_mean_of(device, "sm_active"),
        tensor_active=tensor,
        dram_active=_mean_of(device, "dram_active"),
        mfu_upper=None if upper is None else min(upper, 1.0),
        idle_share=_share(line.idle, weights) if line and line.known.all() else None,
        held_share=_share(line.held, weights) if line and line.known.all() else None,
        power_watts=_mean_of(device, "power"),
        power_limit_watts=_last(device, "power_limit"),
        joules=float(energy.values[-1]) if len(energy) else None,
        joules_from=joules_from,
        clock_hertz=clock if line else _mean_of(device, "clock"),
        clock_max_hertz=_last(device, "clock_max"),
        clock_sampled="clock" in device.tracks,
        reasons={k: share for k, v in (flags or {}).items() if (share := _share(v, weights))},
        temperature_most=_max(device, "temperature"),
        memory_temperature_most=_max(device, "memory_temperature"),
        memory_used_most_bytes=_max(device, "memory_used"),
        memory_bytes=_memory(device),
        ecc_corrected=_growth(device, "ecc_corrected"),
        ecc_uncorrected=_growth(device, "ecc_uncorrected"),
        rows_remapped=_sum(_last(device, "rows_corrected"), _last(device, "rows_uncorrected")),
        remap_failed=_flag(_last(device, "remap_failure")),
        link_bytes_per_second=_sum(
            _mean_of(device, "link_sent"), _mean_of(device, "link_received")
        ),
        link_errors=_sum(*(_growth(device, name) for name in device.names("link_errors"))),
        pcie_bytes_per_second=_sum(
            _mean_of(device, "pcie_sent"), _mean_of(device, "pcie_received")
        ),
        pcie_replays=_growth(device, "pcie_replays"),
        xids=tuple(sorted({int(v) for v in device.series("xid").values if v > 0})),
        activity=activity,
    )


def node_figures(fleet: SampledFleet) -> tuple[NodeFigures, ...]:
    figures = []
    for device in fleet.nodes.values():
        total, free = _last(device, "memory_total:"), _last(device, "memory_available:")
        idle, cpus = _rates(device, "cpu"), len(device.names("cpu"))
        busy = cpus - idle if idle is not None else _mean_of(device, "cpus_busy:")
        figures.append(
            NodeFigures(
                node=device.node,
                cpus_busy=None if busy is None else max(busy, 0.0),
                memory_used_share=1 - free / total if total and free is not None else None,
                network_received_bytes_per_second=_rates(device, "network_received"),
                network_sent_bytes_per_second=_rates(device, "network_sent"),
                infiniband_received_bytes_per_second=_rates(device, "infiniband_received"),
                infiniband_sent_bytes_per_second=_rates(device, "infiniband_sent"),
            )
        )
    for node, values in fleet.node_values.items():
        figures.append(NodeFigures(node=node, **values))
    return tuple(sorted(figures, key=lambda row: row.node))


def _rates(device: SampledDevice, prefix: str) -> float | None:
    """Summed growth per second of all counters of a kind; None for fewer than two samples."""
    total = None
    for name in device.names(prefix):
        series = device.series(name)
        if len(series) < 2 or np.isnan(series.times[0]):
            continue
        grown = np.maximum(np.diff(series.values), 0.0).sum()
        total = (total or 0.0) + float(grown / (series.times[-1] - series.times[0]))
    return total


def _mean_of(device: SampledDevice, name: str) -> float | None:
    series = device.series(name)
    return mean(series.values, cover(series.times)[0]) if len(series) else None


def _last(device: SampledDevice, name: str) -> float | None:
    series = device.series(name)
    return float(series.values[-1]) if len(series) else None


def _max(device: SampledDevice, name: str) -> float | None:
    series = device.series(name)
    return float(series.values.max()) if len(series) else None


def _growth(device: SampledDevice, name: str) -> float | None:
    series = device.series(name)
    if not len(series):
        return None
    if np.isnan(series.times[0]):
        return float(series.values[-1])
    return float(np.maximum(np.diff(series.values), 0.0).sum())


def _share(flags: Flags, weights: Floats | None) -> float | None:
    return mean(flags.astype(float), np.ones(len(flags)) if weights is None else weights)


def _memory(device: SampledDevice) -> float | None:
    total = _last(device, "memory_total")
    if total is not None:
        return total
    used, free = _last(device, "memory_used"), _last(device, "memory_free")
    return used + free if used is not None and free is not None else None


def _sum(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _flag(value: float | None) -> bool | None:
    return None if value is None else value > 0
