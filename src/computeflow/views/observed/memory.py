"""Memory snapshots as tables: the peak by owner and place, and what was short."""

from __future__ import annotations

from computeflow.telemetry.memory.facts import DeviceMemory, Memory, OutOfMemory
from computeflow.telemetry.observed import Observed
from computeflow.units import format_seconds, format_share, format_si
from computeflow.views.tables import Table, columns

MOST_DEVICES = 16


def tables(observed: Observed) -> list[Table]:
    facts: Memory = observed.facts
    made = []
    for device in facts.devices[:MOST_DEVICES]:
        of = f"GPU {device.device}" if facts.rank is None else f"rank {facts.rank}"
        made += [_owners(device, of), _sites(device, of), _health(device, of)]
    hidden = len(facts.devices) - MOST_DEVICES
    shown = [table for table in made if table.rows]
    if hidden > 0:
        shown.append(
            Table(title=f"{hidden:,} more GPUs: -o json has all", columns=columns("GPU"), rows=())
        )
    return shown


def _bytes(value: float) -> str:
    return format_si(value, "B")


def _owners(device: DeviceMemory, of: str) -> Table:
    peak = device.peak
    order = sorted(peak.owners.items(), key=lambda item: -item[1])
    total = peak.allocated_bytes or 1
    rows = [(name, _bytes(size), format_share(size / total)) for name, size in order]
    rows.append(("allocated", _bytes(peak.allocated_bytes), format_share(1.0)))
    when = "" if device.events else ", at the moment of the snapshot"
    return Table(
        title=f"Memory of {of} at its peak{when}, by owner",
        columns=columns("owner", "bytes", "share", right="bytes,share"),
        rows=tuple(rows),
        notes=(
            f"reserved then: {_bytes(peak.reserved_bytes)}; at most: "
            f"{_bytes(device.peak_reserved_bytes)}",
        ),
        strong=frozenset({len(rows) - 1}),
    )


def _sites(device: DeviceMemory, of: str) -> Table:
    return Table(
        title=f"Largest places in the code, {of}, at the peak",
        columns=columns("where", "owner", "bytes", "times", right="bytes,times", wrap="where"),
        rows=tuple(
            (site.where or "no stack", site.owner, _bytes(site.bytes), f"{site.count:,}")
            for site in device.peak.sites
        ),
    )


def _health(device: DeviceMemory, of: str) -> Table:
    rows = [
        (f"out of memory, {_bytes(o.asked_bytes)} asked for", _oom(o)) for o in device.out_of_memory
    ]
    found, creep = device.fragmentation, device.creep
    if found is not None:
        rows.append(
            (
                "free in pieces when more was needed",
                f"{_bytes(found.split_bytes)}, {format_share(found.share)} of what was reserved; "
                f"largest free place {_bytes(found.largest_free_bytes)} "
                f"for {_bytes(found.wanted_bytes)}",
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
                "segments given back to get others",
                f"{device.retries.count:,} times, {_bytes(device.retries.freed_bytes)}, {took}",
            )
        )
    steps = (
        f"{device.steps:,} steps, from {device.steps_from}" if device.steps else "no steps known"
    )
    return Table(
        title=f"State of the allocator, {of}",
        columns=columns("what", "found", wrap="what,found"),
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
