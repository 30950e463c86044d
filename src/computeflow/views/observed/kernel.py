"""Faults of nodes as tables, and what gpu_burn found."""

from __future__ import annotations

from datetime import UTC, datetime

from computeflow.telemetry.kernel.burn import Burn
from computeflow.telemetry.kernel.folding import Fault
from computeflow.telemetry.kernel.source import KernelLogs
from computeflow.telemetry.observed import Observed
from computeflow.units import format_seconds, format_share, format_si
from computeflow.views.tables import Table, columns

MOST_ROWS = 20


def tables(observed: Observed) -> list[Table]:
    if isinstance(observed.facts, Burn):
        return [_burn_table(observed.facts)]
    found = [_faults_table(observed), _meanings_table(observed.facts)]
    return [table for table in found if table.rows]


def _faults_table(observed: Observed) -> Table:
    """Those that stop a job first."""
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
        for fault in facts.faults[:MOST_ROWS]
    ]
    hidden = len(facts.faults) - len(rows)
    lines = sum(log.lines for log in facts.logs)
    notes = [f"{hidden:,} more: -o json has them"] if hidden else []
    notes += [*observed.notes, *(f"left out: {text}" for text in observed.left_out)]
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
    shown = {fault.what: fault for fault in reversed(facts.faults[:MOST_ROWS]) if fault.fault}
    return Table(
        title="What the faults mean, and what is usually done",
        columns=columns("fault", "what it is", "what to do", wrap="what it is,what to do"),
        rows=tuple(
            (fault.what, fault.meaning or "-", fault.action) for fault in reversed(shown.values())
        ),
    )


def _burn_table(facts: Burn) -> Table:
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


def _when(fault: Fault) -> str:
    if fault.clock == "boot":
        return f"{format_seconds(fault.first)} after boot"
    if fault.clock == "none":
        return "-"
    form = "%Y-%m-%d %H:%M:%S" if fault.clock == "unix" else "%m-%d %H:%M:%S"
    return datetime.fromtimestamp(fault.first, UTC).strftime(form)
