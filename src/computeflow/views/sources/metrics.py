"""Metrics as tables: GPU activity, throttling and errors, nodes, and events."""

from __future__ import annotations

from collections.abc import Iterable

from computeflow.telemetry.metrics.exporter_fields import SETTINGS
from computeflow.telemetry.metrics.gpu_facts import GpuFigures, MetricsFacts
from computeflow.telemetry.source_reports import Event, SourceReport
from computeflow.units import format_seconds, format_share, format_si
from computeflow.views.tables import Table, columns

MAX_GPUS = 32
MAX_ROWS = 20


def tables(observed: SourceReport) -> list[Table]:
    facts = observed.facts
    assert isinstance(facts, MetricsFacts)
    made = [_activity(facts), _health(facts), _nodes(facts), _happened(observed.happenings)]
    return [table for table in made if table.rows or table.notes]


def headline(observed: SourceReport) -> str:
    facts: MetricsFacts = observed.facts
    used = [gpu.utilisation for gpu in facts.gpus if gpu.utilisation is not None]
    mean = f", {format_share(sum(used) / len(used))} utilisation in the mean" if used else ""
    faults = sum(event.fault for event in observed.happenings)
    return f"{len(facts.gpus):,} GPUs{mean}, {faults:,} faults."


def _activity(facts: MetricsFacts) -> Table:
    rows = tuple(
        (
            gpu.node,
            gpu.gpu or gpu.uuid,
            format_share(gpu.utilisation),
            format_share(gpu.sm_active),
            format_share(gpu.tensor_active),
            format_share(gpu.idle_share),
            _number(gpu.power_watts),
            _clock(gpu),
        )
        for gpu in sorted(facts.gpus, key=_badness)[:MAX_GPUS]
    )
    heads = ("node", "GPU", "util.", "SMs", "tensor", "idle", "W", "clock")
    return Table(
        title=f"GPUs, worst first: means{_window(facts)}",
        columns=columns(*heads, right="GPU,util.,SMs,tensor,idle,W,clock", wrap="node"),
        rows=rows,
        notes=tuple(_activity_notes(facts)),
    )


def _badness(gpu: GpuFigures) -> tuple[bool, float, float]:
    """Order of GPUs: errors, then reasons for low clocks that are no settings, then idle while held."""
    slowed = max((s for name, s in gpu.reasons.items() if name not in SETTINGS), default=0.0)
    return not _troubles(gpu), -slowed, -(gpu.idle_share or 0.0)


def _activity_notes(facts: MetricsFacts) -> Iterable[str]:
    if len(facts.gpus) > MAX_GPUS:
        yield f"{len(facts.gpus) - MAX_GPUS:,} more GPUs: -o json has all"
    yield "util.: time in which any kernel ran, however small; SMs: cycles in which they had work"
    upper = [gpu.mfu_upper for gpu in facts.gpus if gpu.mfu_upper is not None]
    if upper:
        mean = sum(upper) / len(upper)
        yield (
            f"tensor: cycles in which the tensor pipe worked; the MFU lies below {format_share(mean)} "
            "in the mean, an upper estimate from it"
        )
    yield "idle: held by somebody while nothing ran; clock: at work, of the highest"
    joules = [gpu.joules for gpu in facts.gpus if gpu.joules is not None]
    if joules:
        ways = sorted({gpu.joules_from for gpu in facts.gpus if gpu.joules is not None})
        yield f"{format_si(sum(joules), 'J')} by {len(joules):,} GPUs, from {' and '.join(ways)}"


def _window(facts: MetricsFacts) -> str:
    if facts.start is None or facts.end is None:
        return " of samples without times"
    step = f", every {format_seconds(facts.step_seconds)}" if facts.step_seconds else ""
    return f" over {format_seconds(facts.end - facts.start)}{step}"


def _clock(gpu: GpuFigures) -> str:
    if gpu.clock_hertz is None:
        return "-"
    clock = f"{gpu.clock_hertz / 1e6:,.0f} MHz"
    if gpu.clock_max_hertz:
        clock += f", {100 * gpu.clock_hertz / gpu.clock_max_hertz:.0f} %"
    return clock


def _health(facts: MetricsFacts) -> Table:
    """GPUs with errors, or throttled for reasons that are no settings; the others are summed up."""
    chosen = [gpu for gpu in facts.gpus if _troubles(gpu) or set(gpu.reasons) - SETTINGS]
    chosen.sort(key=_badness)
    rows = tuple(
        (
            gpu.node,
            gpu.gpu or gpu.uuid,
            _number(gpu.temperature_most),
            _reasons(gpu),
            ", ".join(_troubles(gpu)),
        )
        for gpu in chosen[:MAX_ROWS]
    )
    notes = [f"{len(chosen) - len(rows):,} more GPUs: -o json has all"]
    notes = notes if len(chosen) > len(rows) else []
    shown = {id(gpu) for gpu in chosen}
    rest = [gpu for gpu in facts.gpus if gpu.reasons and id(gpu) not in shown]
    for name in sorted({name for gpu in rest for name in gpu.reasons}):
        shares = [gpu.reasons[name] for gpu in rest if name in gpu.reasons]
        mean = format_share(sum(shares) / len(shares))
        notes.append(
            f"{name}: {mean} of the time on {len(shares):,} other GPUs, a limit by setting"
        )
    return Table(
        title="Reasons for low clocks, with their share of time, and errors",
        columns=columns(
            "node", "GPU", "°C", "reasons", "errors", right="GPU,°C", wrap="node,reasons,errors"
        ),
        rows=rows,
        notes=tuple(notes),
    )


def _reasons(gpu: GpuFigures) -> str:
    order = sorted(gpu.reasons.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {format_share(share)}" for name, share in order)


def _troubles(gpu: GpuFigures) -> list[str]:
    counts = {
        "ECC corrected": gpu.ecc_corrected,
        "ECC uncorrected": gpu.ecc_uncorrected,
        "rows remapped": gpu.rows_remapped,
        "link errors": gpu.link_errors,
        "PCIe replays": gpu.pcie_replays,
    }
    troubles = [f"xid {code}" for code in gpu.xids]
    troubles += [f"{count:,.0f} {what}" for what, count in counts.items() if count]
    return troubles + (["remapping failed"] if gpu.remap_failed else [])


def _nodes(facts: MetricsFacts) -> Table:
    rows = tuple(
        (
            node.node,
            _number(node.cpus_busy, 1),
            format_share(node.memory_used_share),
            format_si(node.network_received_bytes_per_second, "B/s"),
            format_si(node.network_sent_bytes_per_second, "B/s"),
        )
        for node in facts.nodes[:MAX_ROWS]
    )
    hidden = len(facts.nodes) - len(rows)
    heads = ("node", "CPUs busy", "memory", "received", "sent")
    return Table(
        title="Nodes",
        columns=columns(*heads, right="CPUs busy,memory,received,sent", wrap="node"),
        rows=rows,
        notes=(f"{hidden:,} more nodes: -o json has all",) if hidden else (),
    )


def _happened(happenings: tuple[Event, ...]) -> Table:
    """Events by kind and node: how often, on how many GPUs."""
    groups: dict[tuple[bool, str, str], list[Event]] = {}
    for event in happenings:
        groups.setdefault((not event.fault, event.what, event.node), []).append(event)
    rows = tuple(
        (what, node, f"{len(events):,}", f"{len({event.gpu for event in events}):,}")
        for (_, what, node), events in sorted(groups.items())[:MAX_ROWS]
    )
    hidden = len(groups) - len(rows)
    return Table(
        title="What happened, faults first",
        columns=columns("event", "node", "times", "GPUs", right="times,GPUs", wrap="event,node"),
        rows=rows,
        notes=(f"{hidden:,} more kinds: -o json has all",) if hidden else (),
    )


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
