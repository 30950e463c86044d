"""The jobs of a cluster as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from computeflow.economics import usd_of
from computeflow.ledger import describe
from computeflow.telemetry.accounting.blame import Blame
from computeflow.telemetry.accounting.facts import Accounting, Row
from computeflow.telemetry.accounting.suspects import Suspect
from computeflow.telemetry.observed import Observed
from computeflow.units import DAY_SECONDS, format_seconds, format_share, format_si
from computeflow.views.tables import Table, columns

MOST_ROWS = 10
_OWN_ZERO = 3e8
"""Before 1979: a trace that counts from its own beginning."""


def tables(observed: Observed, price: float | None = None) -> list[Table]:
    """`price`: dollars per GPU-hour."""
    facts: Accounting = observed.facts
    found = [summary_table(facts)]
    if observed.ledger is None:
        reason = f"no ledger: {observed.ledger_reason}"
        found = [replace(found[0], notes=(*found[0].notes, reason))]
    found += [
        rows_table("Teams", facts.by_team, facts, price),
        rows_table("Users", facts.by_user, facts, price),
        rows_table("Jobs", facts.by_job, facts, price),
        rows_table("States", facts.by_state, facts, price),
        rows_table("Nodes", facts.by_node, facts, price),
        _sizes_table(facts),
        _suspects_table(facts.suspects, facts.suspects_reason),
        _out_table(facts),
    ]
    return [table for table in found if table.rows]


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
    return Table(title="The cluster", columns=columns("what", "value"), rows=tuple(rows))


def rows_table(
    title: str, rows: Sequence[Row], facts: Accounting, price: float | None = None
) -> Table:
    whole = facts.contracted_gpu_seconds or facts.used_gpu_seconds or 1.0
    energy = any(row.joules is not None for row in rows)
    unit = _unit(facts)[0]
    names = ["name", "attempts", "failed", unit, "share", "lost"]
    names += ["energy"] if energy else []
    names += ["USD"] if price is not None else []
    cells = []
    for row in rows[:MOST_ROWS]:
        cell = [
            row.name,
            f"{row.attempts:,}",
            f"{row.failed:,}",
            _amount(facts, row.gpu_seconds),
            format_share(row.gpu_seconds / whole),
            _amount(facts, row.lost_gpu_seconds),
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
                format_share(size.failed / size.attempts),
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


def _suspects_table(suspects: Sequence[Suspect], reason: str) -> Table:
    rows = [
        (one.node, f"{one.jobs:,}", f"{one.failed:,}", f"{one.expected:.1f}", f"{one.chance:.1g}")
        for one in suspects[:MOST_ROWS]
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
        notes=("chance: at most this, that so many fail on some node if all are alike",),
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
            for node in nodes[:MOST_ROWS]
        ),
        notes=(f"{len(nodes) - MOST_ROWS:,} more",) if len(nodes) > MOST_ROWS else (),
    )


def blame_table(found: Blame) -> Table:
    """Nodes by what the jobs had that are laid to their faults."""
    unit, size = describe.time_unit(sum(row.gpu_seconds for row in found.nodes) or 10.0)
    after = f"after, {unit}"
    notes = [
        f"{len(found.jobs):,} of {found.failed:,} failed jobs followed a fault on one of their nodes; "
        f"{found.by_chance:.1f} would by chance",
        "after: what the jobs had between the fault and their end",
    ]
    if found.unplaced:
        notes.append(f"{found.unplaced:,} faults without a node or a time: not joined")
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
            for row in found.nodes[:MOST_ROWS]
        ),
        notes=tuple(notes),
    )


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
