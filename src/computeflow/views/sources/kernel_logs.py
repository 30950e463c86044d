"""Faults in kernel logs and results of gpu_burn as tables."""

from __future__ import annotations

from datetime import UTC, datetime

from computeflow.telemetry.kernel_logs.gpu_burn import GpuBurnRun
from computeflow.telemetry.kernel_logs.kernel_log_source import KernelLogs
from computeflow.telemetry.kernel_logs.node_faults import NodeFault
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import format_seconds, format_share, format_si
from computeflow.views.tables import Table, columns, left_out_notes

MAX_ROWS = 20


def tables(observed: SourceReport) -> list[Table]:
    if isinstance(observed.facts, GpuBurnRun):
        return [_burn_table(observed.facts)]
    made = [_faults_table(observed), _meanings_table(observed.facts)]
    return [table for table in made if table.rows]


def headline(observed: SourceReport) -> str:
    facts = observed.facts
    if isinstance(facts, GpuBurnRun):
        bad = [str(gpu.gpu) for gpu in facts.gpus if gpu.verdict == "FAULTY"]
        if not bad:
            return f"No GPU of {len(facts.gpus):,} is faulty."
        return f"{len(bad)} of {len(facts.gpus):,} GPUs are faulty: {', '.join(bad[:MAX_ROWS])}."
    faults = [fault for fault in facts.faults if fault.fault]
    if not faults:
        return "No fault in these logs."
    ending = sum(fault.stops == "yes" for fault in faults)
    worst = faults[0]
    where = f" on {worst.node}" if worst.node else ""
    return (
        f"{len(faults):,} kinds of fault, {ending:,} of which end jobs; worst: {worst.what}{where}."
    )


def _faults_table(observed: SourceReport) -> Table:
    """Faults, those that stop a job first."""
    facts: KernelLogs = observed.facts
    rows = [
        (
            fault.what,
            fault.node or fault.file.rpartition("/")[2],
            fault.device or "-",
            f"{fault.count:,}",
            _when(fault),
            str(fault.stops),
        )
        for fault in facts.faults[:MAX_ROWS]
    ]
    hidden = len(facts.faults) - len(rows)
    lines = sum(log.lines for log in facts.logs)
    notes = [f"{hidden:,} more: -o json has them"] if hidden else []
    notes += [*observed.notes, *left_out_notes(observed.left_out)]
    return Table(
        title=f"Faults in {len(facts.logs):,} logs, {lines:,} lines",
        columns=columns(
            "fault",
            "node or file",
            "device",
            "count",
            "first",
            "ends jobs",
            right="count",
            wrap="fault,node or file,device,first",
        ),
        rows=tuple(rows) or (("none", "-", "-", "0", "-", "-"),),
        notes=tuple(notes),
    )


def _meanings_table(facts: KernelLogs) -> Table:
    shown = {fault.what: fault for fault in reversed(facts.faults[:MAX_ROWS]) if fault.fault}
    return Table(
        title="What the faults mean, and what is usually done",
        columns=columns("fault", "what it is", "what to do", wrap="what it is,what to do"),
        rows=tuple(
            (fault.what, fault.meaning or "-", fault.action) for fault in reversed(shown.values())
        ),
    )


def _burn_table(facts: GpuBurnRun) -> Table:
    return Table(
        title="gpu_burn: a test of GPUs, no training",
        columns=columns(
            "GPU",
            "name",
            "FLOP/s",
            "of median",
            "errors",
            "hottest",
            "verdict",
            right="GPU,FLOP/s,of median,errors,hottest",
            wrap="name",
        ),
        rows=tuple(
            (
                str(gpu.gpu),
                gpu.name or "-",
                format_si(gpu.flops_per_second, ""),
                format_share(gpu.of_median),
                f"{gpu.errors:,}",
                "-" if gpu.most_celsius is None else f"{gpu.most_celsius:.0f} C",
                gpu.verdict or "-",
            )
            for gpu in facts.gpus
        ),
    )


def _when(fault: NodeFault) -> str:
    if fault.clock == "boot":
        return f"{format_seconds(fault.first)} after boot"
    if fault.clock == "none":
        return "-"
    form = "%Y-%m-%d %H:%M:%S" if fault.clock == "unix" else "%m-%d %H:%M:%S"
    return datetime.fromtimestamp(fault.first, UTC).strftime(form)
