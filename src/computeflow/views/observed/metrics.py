"""Metrics as tables: GPUs, what was left to them, nodes, and what happened."""

from __future__ import annotations

from collections.abc import Iterable

from computeflow.telemetry.metrics.facts import GpuFigures, MetricsFacts
from computeflow.telemetry.metrics.fields import SETTINGS
from computeflow.telemetry.observed import Happening, Observed
from computeflow.units import format_seconds, format_share, format_si
from computeflow.views.tables import Table, columns

MOST_GPUS = 32
MOST_ROWS = 20


def tables(observed: Observed) -> list[Table]:
    facts = observed.facts
    assert isinstance(facts, MetricsFacts)
    found = [_activity(facts), _health(facts), _nodes(facts), _happened(observed.happenings)]
    return [table for table in found if table.rows or table.notes]


def _activity(facts: MetricsFacts) -> Table:
    rows = tuple(
        (
            one.node,
            one.gpu or one.uuid,
            format_share(one.utilisation),
            format_share(one.sm_active),
            format_share(one.tensor_active),
            format_share(one.idle_share),
            _number(one.power_watts),
            _clock(one),
        )
        for one in facts.gpus[:MOST_GPUS]
    )
    heads = ("node", "GPU", "util.", "SMs", "tensor", "idle", "W", "clock")
    return Table(
        title=f"GPUs: means{_window(facts)}",
        columns=columns(*heads, right="GPU,util.,SMs,tensor,idle,W,clock", wrap="node"),
        rows=rows,
        notes=tuple(_activity_notes(facts)),
    )


def _activity_notes(facts: MetricsFacts) -> Iterable[str]:
    if len(facts.gpus) > MOST_GPUS:
        yield f"{len(facts.gpus) - MOST_GPUS:,} more GPUs: -o json has all"
    yield "util.: time in which any kernel ran, however small; SMs: cycles in which they had work"
    upper = [one.mfu_upper for one in facts.gpus if one.mfu_upper is not None]
    if upper:
        mean = sum(upper) / len(upper)
        yield (
            f"tensor: cycles in which the tensor pipe worked; the MFU lies below {format_share(mean)} "
            "in the mean, an upper estimate from it"
        )
    yield "idle: held by somebody while nothing ran; clock: at work, of the highest"
    joules = [one.joules for one in facts.gpus if one.joules is not None]
    if joules:
        ways = sorted({one.joules_from for one in facts.gpus if one.joules is not None})
        yield f"{format_si(sum(joules), 'J')} by {len(joules):,} GPUs, from {' and '.join(ways)}"


def _window(facts: MetricsFacts) -> str:
    if facts.start is None or facts.end is None:
        return " of samples without times"
    step = f", every {format_seconds(facts.step_seconds)}" if facts.step_seconds else ""
    return f" over {format_seconds(facts.end - facts.start)}{step}"


def _clock(one: GpuFigures) -> str:
    if one.clock_hertz is None:
        return "-"
    clock = f"{one.clock_hertz / 1e6:,.0f} MHz"
    if one.clock_max_hertz:
        clock += f", {100 * one.clock_hertz / one.clock_max_hertz:.0f} %"
    return clock


def _health(facts: MetricsFacts) -> Table:
    """GPUs with errors or reasons that are no settings; the others are summed up."""
    chosen = [one for one in facts.gpus if _troubles(one) or set(one.reasons) - SETTINGS]
    rows = tuple(
        (
            one.node,
            one.gpu or one.uuid,
            _number(one.temperature_most),
            _reasons(one),
            ", ".join(_troubles(one)),
        )
        for one in chosen[:MOST_ROWS]
    )
    notes = [f"{len(chosen) - len(rows):,} more GPUs: -o json has all"]
    notes = notes if len(chosen) > len(rows) else []
    shown = {id(one) for one in chosen}
    rest = [one for one in facts.gpus if one.reasons and id(one) not in shown]
    for name in sorted({name for one in rest for name in one.reasons}):
        shares = [one.reasons[name] for one in rest if name in one.reasons]
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


def _reasons(one: GpuFigures) -> str:
    order = sorted(one.reasons.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {format_share(share)}" for name, share in order)


def _troubles(one: GpuFigures) -> list[str]:
    counts = {
        "ECC corrected": one.ecc_corrected,
        "ECC uncorrected": one.ecc_uncorrected,
        "rows remapped": one.rows_remapped,
        "link errors": one.link_errors,
        "PCIe replays": one.pcie_replays,
    }
    found = [f"xid {code}" for code in one.xids]
    found += [f"{count:,.0f} {what}" for what, count in counts.items() if count]
    return found + (["remapping failed"] if one.remap_failed else [])


def _nodes(facts: MetricsFacts) -> Table:
    rows = tuple(
        (
            one.node,
            _number(one.cpus_busy, 1),
            format_share(one.memory_used_share),
            format_si(one.network_received_bytes_per_second, "B/s"),
            format_si(one.network_sent_bytes_per_second, "B/s"),
        )
        for one in facts.nodes[:MOST_ROWS]
    )
    hidden = len(facts.nodes) - len(rows)
    heads = ("node", "CPUs busy", "memory", "received", "sent")
    return Table(
        title="Nodes",
        columns=columns(*heads, right="CPUs busy,memory,received,sent", wrap="node"),
        rows=rows,
        notes=(f"{hidden:,} more nodes: -o json has all",) if hidden else (),
    )


def _happened(happenings: tuple[Happening, ...]) -> Table:
    """By kind and node: how often, on how many GPUs."""
    groups: dict[tuple[bool, str, str], list[Happening]] = {}
    for one in happenings:
        groups.setdefault((not one.fault, one.what, one.node), []).append(one)
    rows = tuple(
        (what, node, f"{len(found):,}", f"{len({one.gpu for one in found}):,}")
        for (_, what, node), found in sorted(groups.items())[:MOST_ROWS]
    )
    hidden = len(groups) - len(rows)
    return Table(
        title="What happened, faults first",
        columns=columns("what", "node", "times", "GPUs", right="times,GPUs", wrap="what,node"),
        rows=rows,
        notes=(f"{hidden:,} more kinds: -o json has all",) if hidden else (),
    )


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
