"""Memory snapshots as tables: the peak by owner and by allocation site, and problems."""

from __future__ import annotations

from computeflow.telemetry.memory.memory_facts import DeviceMemory, OutOfMemory, ProcessMemory
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import format_seconds, format_share, format_si
from computeflow.views.tables import Table, columns

MAX_DEVICES = 16


def tables(observed: SourceReport) -> list[Table]:
    facts: ProcessMemory = observed.facts
    made = []
    for device in facts.devices[:MAX_DEVICES]:
        label = f"GPU {device.device}" if facts.rank is None else f"rank {facts.rank}"
        made += [_owners(device, label), _sites(device, label), _health(device, label)]
    hidden = len(facts.devices) - MAX_DEVICES
    shown = [table for table in made if table.rows]
    if hidden > 0:
        shown.append(
            Table(title=f"{hidden:,} more GPUs: -o json has all", columns=columns("GPU"), rows=())
        )
    return shown


def headline(observed: SourceReport) -> str:
    facts: ProcessMemory = observed.facts
    if not facts.devices:
        return ""
    device = max(facts.devices, key=lambda device: device.peak.allocated_bytes)
    owners = device.peak.owners
    most = max(owners, key=lambda name: owners[name], default="")
    by = f", most of it {most} ({_bytes(owners[most])})" if most else ""
    return f"GPU {device.device} allocates {_bytes(device.peak.allocated_bytes)} at its peak{by}."


def _bytes(value: float) -> str:
    return format_si(value, "B")


def _owners(device: DeviceMemory, label: str) -> Table:
    peak = device.peak
    order = sorted(peak.owners.items(), key=lambda item: -item[1])
    total = peak.allocated_bytes or 1
    rows = [(name, _bytes(size), format_share(size / total)) for name, size in order]
    rows.append(("allocated", _bytes(peak.allocated_bytes), format_share(1.0)))
    when = "" if device.events else ", at the moment of the snapshot"
    return Table(
        title=f"Memory of {label} at its peak{when}, by owner",
        columns=columns("owner", "bytes", "share", right="bytes,share"),
        rows=tuple(rows),
        notes=(
            f"reserved then: {_bytes(peak.reserved_bytes)}; at most: "
            f"{_bytes(device.peak_reserved_bytes)}",
        ),
        strong=frozenset({len(rows) - 1}),
    )


def _sites(device: DeviceMemory, label: str) -> Table:
    return Table(
        title=f"Largest allocation sites, {label}, at the peak",
        columns=columns("where", "owner", "bytes", "times", right="bytes,times", wrap="where"),
        rows=tuple(
            (site.where or "no stack", site.owner, _bytes(site.bytes), f"{site.count:,}")
            for site in device.peak.sites
        ),
    )


def _health(device: DeviceMemory, label: str) -> Table:
    rows = [
        (f"out of memory: {_bytes(o.asked_bytes)} requested", _oom(o)) for o in device.out_of_memory
    ]
    fragmentation, creep = device.fragmentation, device.creep
    if fragmentation is not None:
        rows.append(
            (
                "fragmented when more was requested",
                f"{_bytes(fragmentation.split_bytes)}, {format_share(fragmentation.share)} of reserved "
                f"memory; largest free block {_bytes(fragmentation.largest_free_bytes)} "
                f"for {_bytes(fragmentation.wanted_bytes)}",
            )
        )
    if creep is not None:
        places = "; ".join(f"{site.where or 'no stack'}" for site in creep.sites[:2])
        rows.append(
            (
                "growth per step",
                f"{_bytes(creep.bytes_per_step)} ({_bytes(creep.low)} to {_bytes(creep.high)}) over "
                f"{creep.steps} steps"
                + (f": {places}" if places and creep.bytes_per_step > 0 else ""),
            )
        )
    if device.retries.count:
        cost = device.retries.seconds
        took = "unknown time" if cost is None else format_seconds(cost)
        rows.append(
            (
                "segments freed and allocated again",
                f"{device.retries.count:,} times, {_bytes(device.retries.freed_bytes)}, {took}",
            )
        )
    steps = (
        f"{device.steps:,} steps, from {device.steps_from}" if device.steps else "no steps known"
    )
    return Table(
        title=f"State of the allocator, {label}",
        columns=columns("problem", "detail", wrap="problem,detail"),
        rows=tuple(rows),
        notes=(f"{device.events:,} events; {steps}",),
    )


def _oom(oom: OutOfMemory) -> str:
    text = (
        f"{_bytes(oom.allocated_bytes)} of {_bytes(oom.reserved_bytes)} reserved were allocated, "
        f"{_bytes(oom.split_bytes)} free in pieces of at most {_bytes(oom.largest_free_bytes)}"
    )
    if oom.missing_bytes:
        text += f", {_bytes(oom.missing_bytes)} missing even so"
    if oom.limited:
        text += "; the device had more: a limit of the process"
    return f"{text}; would expandable segments have sufficed: {oom.expandable} ({oom.why})"
