"""An audit of traces as tables: the ledger, the ranks, the host's causes and, in detail, one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from computeflow.telemetry.traces.roofline import rooflines
from computeflow.units import format_seconds, format_share, format_si
from computeflow.views.as_it_runs import replay_notes
from computeflow.views.ledgers import ledger_table, replayed_ledger_table
from computeflow.views.tables import Table, columns, left_out_notes

if TYPE_CHECKING:
    from computeflow.diagnosis.diagnosis import Diagnosis
    from computeflow.economics import GridEnergy
    from computeflow.telemetry.traces.job_ledgers import TracedJob
    from computeflow.telemetry.traces.rank_measurements import RankMeasurement

MAX_RANKS = 16
MAX_ROWS = 10
_NAME = 60


def audit_tables(
    traced: TracedJob, *, details: bool, diagnosis: Diagnosis | None = None
) -> list[Table]:
    """`diagnosis` adds the ledger as it runs to the recorded one."""
    ledger, step = _ledger(traced, diagnosis), diagnosis and diagnosis.as_it_runs
    notes = [*ledger.notes, *traced.notes, *traced.job.notes, *left_out_notes(traced.left_out)]
    tables = [_with_notes(ledger, notes)]
    if len(traced.ranks) > 1:
        tables.append(_ranks_table(traced))
    if sum(sum(rank.host.values()) for rank in traced.ranks) > 0:
        title = "The account host" + (", as recorded," if step else ",")
        tables.append(_host_table(traced.ranks, f"{title} by cause"))
    if details:
        first = traced.ranks[0]
        tables += [
            devices_table(traced),
            _steps_table(first),
            _kernels_table(first),
            _operators_table(traced, first),
            _gaps_table(first),
            _copies_table(first),
            _figures_table(first),
            _counters_table(traced),
        ]
    return [table for table in tables if table.rows]


def _ledger(traced: TracedJob, diagnosis: Diagnosis | None) -> Table:
    recorded = traced.job.ledger
    if diagnosis is None:
        return ledger_table(recorded)
    notes, step = replay_notes(diagnosis), diagnosis.as_it_runs
    if step is not None:
        return replayed_ledger_table(recorded, step.ledger, notes)
    table = ledger_table(recorded)
    return _with_notes(table, [*notes, *table.notes])


def _with_notes(table: Table, notes: Sequence[str]) -> Table:
    from dataclasses import replace

    return replace(table, notes=tuple(notes))


def _ranks_table(traced: TracedJob) -> Table:
    """The ranks, those that others wait for first."""
    order = sorted(traced.job.ranks, key=lambda rank: (-rank.waited_for_seconds, rank.rank))
    rows = []
    for rank in order[:MAX_RANKS]:
        ledger = rank.ledger
        wait = ledger.booked("straggler") + ledger.booked("imbalance") + ledger.booked("bubble")
        rows.append(
            (
                str(rank.rank),
                format_seconds(ledger.wall_seconds),
                "-" if ledger.mfu is None else format_share(ledger.mfu),
                format_share(ledger.booked("compute") / ledger.gpu_seconds),
                format_share(ledger.booked("comm") / ledger.gpu_seconds),
                format_share(ledger.booked("host") / ledger.gpu_seconds),
                format_share(wait / ledger.gpu_seconds),
                "-" if rank.came_last is None else format_share(rank.came_last),
                format_seconds(rank.waited_for_seconds),
            )
        )
    hidden = len(order) - len(rows)
    notes = [f"{hidden:,} more ranks: -o json has all"] if hidden else []
    if traced.job.shared_collectives:
        spread = format_seconds(traced.job.clock_spread_seconds)
        notes.append(
            f"{traced.job.shared_collectives:,} shared collectives and messages on one clock; ends of "
            f"collectives lie {spread} apart in the median"
        )
    return Table(
        title="Ranks, those that others wait for first",
        columns=columns(
            "rank",
            "window",
            "MFU",
            "compute",
            "comm",
            "host",
            "waits",
            "came last",
            "others waited",
            right="rank,window,MFU,compute,comm,host,waits,came last,others waited",
        ),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def devices_table(traced: TracedJob) -> Table:
    """Activity of each rank's device, and how much of it computation hides."""
    heads = ("rank", "device", "busy", "comm", "hidden", "copies", "hidden", "FLOP/s")
    names = sorted({rank.device for rank in traced.ranks} - {""})
    described = ", ".join((*names, *traced.versions))
    hidden = len(traced.ranks) - MAX_RANKS
    return Table(
        title=f"Devices: {described or 'not named'}",
        columns=columns(*heads, right="rank,busy,comm,hidden,copies,FLOP/s"),
        rows=tuple(_device_row(rank) for rank in traced.ranks[:MAX_RANKS]),
        notes=(
            *((f"{hidden:,} more ranks: -o json has all",) if hidden > 0 else ()),
            "busy, comm, copies: share of the window; hidden: of it, under computation",
        ),
    )


def _device_row(rank: RankMeasurement) -> tuple[str, ...]:
    seconds = (rank.window_end - rank.window_start) / 1e9
    origin, did = rank.origin, rank.activity
    process = "" if origin.process is None else f", process {origin.process}"
    number = "" if origin.device is None else f"{origin.device}{process}"
    return (
        str(rank.rank),
        origin.plane or number or "-",
        format_share(did.busy_seconds / seconds),
        *_of_window(did.comm_seconds, did.comm_hidden_seconds, seconds),
        *_of_window(did.copy_seconds, did.copy_hidden_seconds, seconds),
        format_si(rank.flops / seconds, "") if rank.flops else "-",
    )


def _of_window(whole: float, hidden: float, seconds: float) -> tuple[str, str]:
    if not whole:
        return "-", "-"
    return format_share(whole / seconds), format_share(hidden / whole)


_CAUSES = {
    "launch": "the host launched too late",
    "sync": "the host waited for the device and then had nothing queued",
    "allocator": "allocating or freeing device memory",
    "gc": "Python collected garbage",
    "queued": "latency of the device between kernels that were queued in time",
}


_ON_HOST = _CAUSES | {"launch": "between operators: whatever else the program did"}
"""The causes where the host computes and nothing is launched."""


def _host_table(ranks: Sequence[RankMeasurement], title: str) -> Table:
    on_host = not any(rank.on_device for rank in ranks)
    meaning, unit = (_ON_HOST, "ms") if on_host else (_CAUSES, "GPU-ms")
    whole = sum((rank.window_end - rank.window_start) / 1e9 for rank in ranks)
    causes: dict[str, float] = {}
    for rank in ranks:
        for name, seconds in rank.host.items():
            causes[name] = causes.get(name, 0.0) + seconds
    return Table(
        title=title,
        columns=columns("cause", unit, "share", "meaning", right=f"{unit},share", wrap="meaning"),
        rows=tuple(
            (name, f"{1e3 * seconds:,.2f}", format_share(seconds / whole), meaning.get(name, ""))
            for name, seconds in sorted(causes.items(), key=lambda item: -item[1])
        ),
    )


def _steps_table(rank: RankMeasurement) -> Table:
    """Steps of one rank, each against their median."""
    usual = sorted(rank.step_seconds)[len(rank.step_seconds) // 2]
    rows = []
    for index, number in enumerate(rank.steps):
        seconds = rank.step_seconds[index]
        over = {
            name: values[index] - sorted(values)[len(values) // 2]
            for name, values in rank.by_step.items()
        }
        most = max(over, key=lambda name: over[name], default="")
        grew = f"{most} {1e3 * over[most]:+.2f} ms" if most and over[most] > 0.005 * usual else ""
        rows.append(
            (str(number), format_seconds(seconds), f"{100 * (seconds / usual - 1):+.1f} %", grew)
        )
    return Table(
        title=f"Steps of rank {rank.rank}, against their median",
        columns=columns("step", "time", "over", "what grew", right="step,time,over"),
        rows=tuple(rows[:MAX_RANKS]),
        notes=(f"{len(rows) - MAX_RANKS} more steps",) if len(rows) > MAX_RANKS else (),
    )


def _kernels_table(rank: RankMeasurement) -> Table:
    return Table(
        title=f"Kernels of rank {rank.rank}, longest first",
        columns=columns(
            "kernel", "kind", "count", "time", "share", right="count,time,share", wrap="kernel"
        ),
        rows=tuple(
            (
                _short(row.name),
                row.work,
                f"{row.count:,}",
                format_seconds(row.seconds),
                format_share(row.share),
            )
            for row in rank.kernels[:MAX_ROWS]
        ),
    )


def _operators_table(traced: TracedJob, rank: RankMeasurement) -> Table:
    peak = traced.job.ledger.peak
    tf32 = peak is not None and peak.precision == "tf32"
    rows = rooflines(rank.operators, traced.accelerator, tf32=tf32)
    return Table(
        title=f"Operators with known FLOPs, rank {rank.rank}",
        columns=columns(
            "operator",
            "count",
            "time",
            "FLOP/s",
            "FLOP/B",
            "bound",
            "of bound",
            right="count,time,FLOP/s,FLOP/B,of bound",
            wrap="operator",
        ),
        rows=tuple(
            (
                row.name,
                f"{row.count:,}",
                format_seconds(row.seconds),
                format_si(row.flops_per_second, ""),
                "-" if row.intensity is None else f"{row.intensity:,.0f}",
                row.bound or "-",
                "-" if row.of_bound is None else format_share(row.of_bound),
            )
            for row in rows[:MAX_ROWS]
        ),
    )


def _gaps_table(rank: RankMeasurement) -> Table:
    return Table(
        title=f"Longest gaps of rank {rank.rank}",
        columns=columns("at", "idle", "account", "cause", "then", right="at,idle", wrap="then"),
        rows=tuple(
            (
                format_seconds(row.start_seconds),
                format_seconds(row.seconds),
                row.account,
                row.cause,
                _short(row.following),
            )
            for row in rank.gaps[:MAX_ROWS]
        ),
    )


def _copies_table(rank: RankMeasurement) -> Table:
    return Table(
        title=f"Copies of rank {rank.rank}",
        columns=columns("copy", "times", "bytes", "time", "rate", right="times,bytes,time,rate"),
        rows=tuple(
            (
                _short(row.what),
                f"{row.count:,}",
                format_si(row.bytes, "B") if row.bytes else "-",
                format_seconds(row.seconds),
                format_si(row.bytes / row.seconds, "B/s") if row.seconds and row.bytes else "-",
            )
            for row in rank.activity.copies[:MAX_ROWS]
        ),
    )


def _counters_table(traced: TracedJob) -> Table:
    rows = traced.counters
    hidden = len(rows) - 2 * MAX_ROWS
    return Table(
        title="Sampled counters, means over the whole recording",
        columns=columns(
            "GPU", "counter", "mean", "samples", right="GPU,mean,samples", wrap="counter"
        ),
        rows=tuple(
            (str(row.gpu), row.metric, f"{row.mean:,.2f}", f"{row.samples:,}")
            for row in rows[: 2 * MAX_ROWS]
        ),
        notes=(f"{hidden:,} more: -o json has all",) if hidden > 0 else (),
    )


def _figures_table(rank: RankMeasurement) -> Table:
    rows = []
    if rank.flops and rank.kernel_seconds:
        share = 1 - rank.product_seconds / rank.kernel_seconds
        rows.append(
            (
                "memory-bound share",
                format_share(share),
                "of kernel time: what is no matrix product, convolution or attention",
            )
        )
    if rank.queue_most:
        rows.append(
            (
                "queue length",
                f"{rank.queue_mean:.1f}",
                f"mean at a launch; most {rank.queue_most:,}, empty at "
                f"{format_share(rank.queue_empty)} of launches",
            )
        )
    return Table(
        title=f"Figures of rank {rank.rank}",
        columns=columns("figure", "value", "meaning", right="value", wrap="meaning"),
        rows=tuple(rows),
    )


def energy_table(energy: GridEnergy) -> Table:
    def cell(value: float | None, form: str) -> str:
        return "unknown" if value is None else format(value, form)

    known = energy.kilowatt_hours is not None
    return Table(
        title=f"Energy of the devices, at {energy.grid}",
        columns=columns("kWh", "$", "kg CO2e", right="kWh,$,kg CO2e"),
        rows=(
            (
                cell(energy.kilowatt_hours, ",.1f"),
                cell(energy.usd, ",.2f"),
                cell(energy.kg_co2e, ",.1f"),
            ),
        ),
        notes=("without hosts, network and cooling" if known else "no source here reads power",),
    )


def hta_table(ranks: Sequence[RankMeasurement]) -> Table:
    rows = []
    for rank in ranks:
        hta = rank.hta
        if hta is None:
            continue
        whole = hta.kernel_time or 1.0
        rows.append(
            (
                str(rank.rank),
                f"{hta.kernel_time:,.0f}",
                f"{hta.idle_time:,.0f}",
                f"{hta.compute_time:,.0f}",
                f"{hta.non_compute_time:,.0f}",
                f"{100 * hta.idle_time / whole:.2f}",
                f"{100 * hta.compute_time / whole:.2f}",
                f"{100 * hta.non_compute_time / whole:.2f}",
                f"{hta.overlap_percent:.2f}",
            )
        )
    names = ("rank", "kernel", "idle", "compute", "other", "idle %", "comp %", "other %", "over %")
    return Table(
        title="As Holistic Trace Analysis counts: microseconds, its window, without the last step",
        columns=columns(*names, right=",".join(names)),
        rows=tuple(rows),
        notes=("other: its non_compute_time; over: communication that computation hides",),
    )


def _short(name: str) -> str:
    """A kernel's name, cut to a column's width."""
    return name if len(name) <= _NAME else name[: _NAME - 3] + "..."
