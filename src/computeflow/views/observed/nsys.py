"""Nsight exports as tables: the ledger, the GPUs, their kernels, copies, gaps and counters."""

from __future__ import annotations

from computeflow.telemetry.nsys.facts import Nsight, NsightGpu
from computeflow.telemetry.observed import Observed
from computeflow.units import format_seconds, format_share, format_si
from computeflow.views.audits import gaps_table, kernels_table
from computeflow.views.tables import Table, columns

MOST_GPUS = 16
MOST_ROWS = 10


def tables(observed: Observed) -> list[Table]:
    facts: Nsight = observed.facts
    made = [_gpus(facts)]
    busiest = max(facts.gpus, key=lambda gpu: gpu.busy_seconds)
    made += [kernels_table(busiest), _copies(busiest), gaps_table(busiest), _metrics(facts)]
    return [table for table in made if table.rows]


def _gpus(facts: Nsight) -> Table:
    shown = facts.gpus[:MOST_GPUS]
    rows = tuple(
        (
            str(gpu.rank), "-" if gpu.process is None else str(gpu.process), str(gpu.device),
            format_seconds(gpu.seconds), format_share(gpu.busy_seconds / gpu.seconds),
            *_hidden(gpu.comm_seconds, gpu.comm_hidden_seconds, gpu.seconds),
            *_hidden(gpu.copy_seconds, gpu.copy_hidden_seconds, gpu.seconds),
            f"{len(gpu.steps):,}" if gpu.steps else "-",
        )
        for gpu in shown
    )  # fmt: skip
    names = sorted({gpu.name for gpu in facts.gpus} - {""})
    heads = ("rank", "process", "device", "time", "busy", "comm.", "hidden", "copies", "hidden",
             "steps")  # fmt: skip
    hidden = len(facts.gpus) - len(shown)
    notes = [f"{hidden:,} more GPUs: -o json has all"] if hidden else []
    notes.append("comm., copies: share of the time; hidden: of these, under computation")
    return Table(
        title=f"GPUs: {', '.join(names) or 'the export does not name them'}; "
        f"{', '.join(facts.versions) or 'version unknown'}",
        columns=columns(*heads, right=",".join(heads)),
        rows=rows,
        notes=tuple(notes),
    )  # fmt: skip


def _hidden(whole: float, hidden: float, seconds: float) -> tuple[str, str]:
    if not whole:
        return "-", "-"
    return format_share(whole / seconds), format_share(hidden / whole)


def _copies(gpu: NsightGpu) -> Table:
    return Table(
        title=f"Copies of rank {gpu.rank}",
        columns=columns("what", "times", "bytes", "time", "rate", right="times,bytes,time,rate"),
        rows=tuple(
            (row.what, f"{row.count:,}", format_si(row.bytes, "B"), format_seconds(row.seconds),
             format_si(row.bytes / row.seconds, "B/s") if row.seconds else "-")
            for row in gpu.copies[:MOST_ROWS]
        ),
    )  # fmt: skip


def _metrics(facts: Nsight) -> Table:
    shown = facts.metrics[: 2 * MOST_ROWS]
    hidden = len(facts.metrics) - len(shown)
    return Table(
        title="Sampled counters, means over the whole recording",
        columns=columns(
            "GPU", "counter", "mean", "samples", right="GPU,mean,samples", wrap="counter"
        ),
        rows=tuple(
            (str(row.gpu), row.metric, f"{row.mean:,.2f}", f"{row.samples:,}") for row in shown
        ),
        notes=(f"{hidden:,} more: -o json has all",) if hidden else (),
    )
