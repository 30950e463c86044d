"""The jobs of a cluster as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from computeflow.economics import usd_of
from computeflow.ledger import describe
from computeflow.telemetry.accounting.fault_attribution import FaultAttribution
from computeflow.telemetry.accounting.scheduler_values import outcome_of
from computeflow.telemetry.accounting.suspect_nodes import SuspectNode
from computeflow.telemetry.accounting.usage import Accounting, UsageRow
from computeflow.telemetry.source_reports import SourceReport
from computeflow.units import DAY_SECONDS, format_seconds, format_share, format_si
from computeflow.views.tables import Table, columns

MAX_ROWS = 10
_OWN_ZERO = 3e8
"""Smaller times count from the trace's own start, not from 1970."""


def tables(observed: SourceReport, price: float | None = None) -> list[Table]:
    """`price`: dollars per GPU-hour."""
    facts: Accounting = observed.facts
    made = [summary_table(facts)]
    if observed.ledger is None:
        reason = f"no ledger: {observed.ledger_reason}"
        made = [replace(made[0], notes=(*made[0].notes, reason))]
    made += [
        rows_table("Teams", facts.by_team, facts, price),
        rows_table("Users", facts.by_user, facts, price),
        rows_table("Jobs", facts.by_job, facts, price),
        rows_table("States", facts.by_state, facts, price),
        rows_table("Nodes", facts.by_node, facts, price),
        _sizes_table(facts),
        _suspects_table(facts.suspects, facts.suspects_reason),
        _out_table(facts),
    ]
    return [table for table in made if table.rows]


def headline(observed: SourceReport) -> str:
    facts: Accounting = observed.facts
    unit = _unit(facts)[0]
    known = _states_known(facts)
    ended = f"{len(facts.failed):,} failed attempts" if known else "how they ended is unknown"
    failed = f"{facts.jobs:,} jobs, {ended}."
    used = f"{_amount(facts, facts.used_gpu_seconds)} {unit}"
    if not facts.contracted_gpu_seconds:
        return f"Jobs used {used}: {failed}"
    share = format_share(facts.used_gpu_seconds / facts.contracted_gpu_seconds)
    whole = f"{_amount(facts, facts.contracted_gpu_seconds)} {unit}"
    return f"Jobs used {share} of the contracted {whole}: {failed}"


def summary_table(facts: Accounting) -> Table:
    rows = []
    if facts.start is not None and facts.end is not None:
        rows.append(("period", f"{_date(facts.start)} to {_date(facts.end)}"))
    if facts.gpus is not None:
        rows.append(("GPUs", f"{facts.gpus:,} ({facts.gpus_from})"))
    if facts.contracted_gpu_seconds:
        share = format_share(facts.used_gpu_seconds / facts.contracted_gpu_seconds)
        unit = _unit(facts)[0]
        rows.append((f"contracted {unit}", _amount(facts, facts.contracted_gpu_seconds)))
        rows.append((f"{unit} of jobs", f"{_amount(facts, facts.used_gpu_seconds)} ({share})"))
    rows.append(("jobs", f"{facts.jobs:,}, {facts.requeues:,} of them started again"))
    if facts.waits is not None:
        waits = facts.waits
        text = f"median {format_seconds(waits.median_seconds)}, p90 "
        rows.append(("wait in the queue", text + format_seconds(waits.p90_seconds)))
    return Table(title="The cluster", columns=columns("figure", "value"), rows=tuple(rows))


def rows_table(
    title: str, rows: Sequence[UsageRow], facts: Accounting, price: float | None = None
) -> Table:
    whole = facts.contracted_gpu_seconds or facts.used_gpu_seconds or 1.0
    energy = any(row.joules is not None for row in rows)
    unit = _unit(facts)[0]
    names = ["name", "attempts", "failed", unit, "share", "lost"]
    names += ["energy"] if energy else []
    names += ["$"] if price is not None else []
    known, cells = _states_known(facts), []
    for row in rows[:MAX_ROWS]:
        cell = [
            row.name,
            f"{row.attempts:,}",
            f"{row.failed:,}" if known else "-",
            _amount(facts, row.gpu_seconds),
            format_share(row.gpu_seconds / whole),
            _amount(facts, row.lost_gpu_seconds) if known else "-",
        ]
        if energy:
            cell.append("-" if row.joules is None else format_si(row.joules, "J"))
        if price is not None:
            cell.append(f"{usd_of(row.gpu_seconds, price):,.2f}")
        cells.append(tuple(cell))
    hidden = len(rows) - len(cells)
    return Table(
        title=f"{title}, most {unit} first",
        columns=columns(*names, right=",".join(names[1:]), wrap="name"),
        rows=tuple(cells),
        notes=(f"{hidden:,} more: -o json has them",) if hidden else (),
    )


def _sizes_table(facts: Accounting) -> Table:
    rows = []
    for size in facts.sizes:
        waits = size.waits
        rows.append(
            (
                size.gpus,
                f"{size.attempts:,}",
                format_share(size.failed / size.attempts) if _states_known(facts) else "-",
                _amount(facts, size.gpu_seconds),
                "-" if waits is None else format_seconds(waits.median_seconds),
                "-" if waits is None else format_seconds(waits.p90_seconds),
            )
        )
    names = ("GPUs", "attempts", "failed", _unit(facts)[0], "median wait", "p90 wait")
    return Table(
        title="Sizes of jobs",
        columns=columns(*names, right=",".join(names)),
        rows=tuple(rows),
    )


def _suspects_table(suspects: Sequence[SuspectNode], reason: str) -> Table:
    rows = [
        (
            suspect.node,
            f"{suspect.jobs:,}",
            f"{suspect.failed:,}",
            f"{suspect.expected:.1f}",
            f"{suspect.chance:.1g}",
        )
        for suspect in suspects[:MAX_ROWS]
    ]
    if not rows:
        return Table(
            title="Nodes where more jobs failed than their users explain",
            columns=columns("node", "why", wrap="why"),
            rows=(("none", reason),),
        )
    return Table(
        title="Nodes where more jobs failed than their users explain",
        columns=columns(
            "node", "jobs", "failed", "expected", "chance", right="jobs,failed,expected,chance"
        ),
        rows=tuple(rows),
        notes=("chance: at most this, of so many failures on any node if all nodes are alike",),
    )


def _out_table(facts: Accounting) -> Table:
    nodes, idle = facts.nodes_out, f"idle {_unit(facts)[0]}"
    return Table(
        title="Nodes out of service when they were listed",
        columns=columns(
            "node", "GPUs", "state", "since", idle, "reason", right=f"GPUs,{idle}", wrap="reason"
        ),
        rows=tuple(
            (
                node.name,
                f"{node.gpus:g}",
                node.state.lower(),
                "-" if node.since is None else _date(node.since),
                "-" if node.gpu_seconds is None else _amount(facts, node.gpu_seconds),
                node.reason or "-",
            )
            for node in nodes[:MAX_ROWS]
        ),
        notes=(f"{len(nodes) - MAX_ROWS:,} more",) if len(nodes) > MAX_ROWS else (),
    )


def attribution_table(attribution: FaultAttribution) -> Table:
    """Nodes by the GPU time of the jobs that failed after a fault there."""
    unit, size = describe.time_unit(sum(row.gpu_seconds for row in attribution.nodes) or 10.0)
    after = f"after, {unit}"
    notes = [
        f"{len(attribution.jobs):,} of {attribution.failed:,} failed jobs followed a fault on one of "
        f"their nodes; {attribution.by_chance:.1f} would by chance",
        "after: GPU time between the fault and the end of the job",
    ]
    if attribution.unplaced:
        notes.append(f"{attribution.unplaced:,} faults without a node or a time: not joined")
    return Table(
        title="Failed jobs that followed a fault of a node",
        columns=columns(
            "node", "jobs", unit, after, "faults", right=f"jobs,{unit},{after}", wrap="faults"
        ),
        rows=tuple(
            (
                row.node,
                f"{row.jobs:,}",
                f"{row.gpu_seconds / size:,.1f}",
                f"{row.waiting_gpu_seconds / size:,.1f}",
                ", ".join(row.what[:5]),
            )
            for row in attribution.nodes[:MAX_ROWS]
        ),
        notes=tuple(notes),
    )


def _states_known(facts: Accounting) -> bool:
    return any(outcome_of(row.name) != "unknown" for row in facts.by_state)


def _unit(facts: Accounting) -> tuple[str, float]:
    return describe.time_unit(facts.contracted_gpu_seconds or facts.used_gpu_seconds or 10.0)


def _amount(facts: Accounting, gpu_seconds: float) -> str:
    return f"{gpu_seconds / _unit(facts)[1]:,.1f}"


def _date(seconds: float) -> str:
    if abs(seconds) < _OWN_ZERO:
        return f"day {seconds / DAY_SECONDS:.1f}"
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} s"
