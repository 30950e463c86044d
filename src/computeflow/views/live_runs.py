"""What goes on right now, as tables: runs, open findings, slowest ranks, nodes with signals.

A run's flow is a bar of letters, one for each account, in the colours of their owners.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from computeflow.collection.online.live_values import LiveFinding, LiveNode, LiveRank, LiveRun
from computeflow.collection.outputs.sinks import nodes_label, ranks_label, run_name
from computeflow.collection.outputs.snapshots import LiveSnapshot
from computeflow.ledger import ACCOUNTS
from computeflow.units import (
    DAY_SECONDS,
    HOUR_SECONDS,
    format_count,
    format_seconds,
    format_share,
)
from computeflow.views.cards import evidence_text
from computeflow.views.tables import Table, columns, left_out_notes

SortBy = Literal["cost", "age", "run"]
SORTS: tuple[SortBy, ...] = ("cost", "age", "run")
LETTERS = {
    "compute.model": "M", "compute": "=", "compute.clock": "k", "compute.kernel": "=",
    "compute.recompute": "=", "optimizer": "o", "copy": "y", "host": "h", "input": "d",
    "comm": "x", "comm.tp": "x", "comm.cp": "x", "comm.ep": "x", "comm.pp": "x", "comm.dp": "x",
    "comm.other": "x", "bubble": "b", "imbalance": "i", "straggler": "s", "checkpoint": "c",
    "evaluation": "v", "startup": "u", "restart": "r", "lost": "l", "idle": ".", "unexplained": "?",
}  # fmt: skip
"""A letter for each account; data, optimizer, checkpoint and evaluation as in recordings."""
SILENT_SECONDS = 60.0
_BAR = 12


def sorted_findings(snapshot: LiveSnapshot, sort: SortBy) -> list[LiveFinding]:
    """Open findings: the most expensive first, the oldest first, or by run and then cost."""
    found = sorted(
        snapshot.open_findings, key=lambda f: (-(f.usd_per_hour or 0.0), -f.share, f.onset, f.key)
    )
    if sort == "age":
        found.sort(key=lambda finding: finding.onset)
    elif sort == "run":
        found.sort(key=lambda finding: run_name(finding.run, snapshot.runs))
    return found


def sorted_runs(snapshot: LiveSnapshot) -> list[LiveRun]:
    """Runs that go on before those that ended, the largest first."""
    return sorted(snapshot.runs, key=lambda run: (run.state == "ended", -run.world, run.name))


def flow_letters(run: LiveRun, width: int) -> list[tuple[str, str]]:
    """Letter and owner for each place of a bar; every account gets the places next to its share."""
    known = [(name, run.accounts.get(name, 0.0)) for name in ACCOUNTS]
    bar: list[tuple[str, str]] = []
    passed = 0.0
    for name, share in known:
        passed += max(share, 0.0)
        places = min(round(passed * width), width) - len(bar)
        bar += [(LETTERS[name], ACCOUNTS[name].owner)] * max(places, 0)
    return bar


def top_headline(snapshot: LiveSnapshot) -> str:
    opened = snapshot.open_findings
    over = sum(run.state == "ended" for run in snapshot.runs)
    stuck = sum(run.state in ("stuck", "silent") for run in snapshot.runs)
    text = f"{format_count(len(snapshot.runs) - over - stuck, 'run')} active"
    text += f", {stuck} stuck or silent" if stuck else ""
    text += f", {over} ended" if over else ""
    text += f"; {format_count(len(opened), 'open finding')}"
    cost, before = snapshot.usd_per_hour(), snapshot.usd_per_hour(silent=True)
    if cost is not None:
        text += f", costing ${cost:,.2f} an hour"
    if before is not None:
        those = "; those of silent runs" if cost is not None else ", which"
        text += f"{those} cost ${before:,.2f} an hour when last heard from"
    return f"{text}."


def short_headline(snapshot: LiveSnapshot) -> str:
    """The same for a line of a terminal: `3 runs (1 stuck), 4 findings, $1,810.80/h`."""
    runs = [run for run in snapshot.runs if run.state != "ended"]
    text = format_count(len(runs), "run")
    for state in ("stuck", "silent"):
        count = sum(run.state == state for run in runs)
        text += f" ({count} {state})" if count else ""
    opened = snapshot.open_findings
    text += f", {format_count(len(opened), 'finding')}"
    cost = snapshot.usd_per_hour()
    return text if cost is None else f"{text}, ${cost:,.2f}/h"


def top_tables(snapshot: LiveSnapshot, sort: SortBy) -> list[Table]:
    tables = [live_runs_table(snapshot)]
    if snapshot.open_findings:
        tables.append(live_findings_table(snapshot, sort))
    slowest = [(run, rank) for run in sorted_runs(snapshot) for rank in run.slowest[:4]]
    if slowest:
        tables.append(slowest_ranks_table(slowest))
    told = [node for node in snapshot.nodes if node.signals or _is_silent(node, snapshot.taken)]
    if told:
        tables.append(nodes_table(told, snapshot.taken))
    return tables


def live_runs_table(snapshot: LiveSnapshot) -> Table:
    rows = [
        (
            run.name or run.run,
            run.state,
            heard_text(run),
            f"{run.step:,}",
            seconds_text(run.step_seconds),
            format_share(run.mfu),
            format_share(run.goodput),
            "".join(letter for letter, _ in flow_letters(run, _BAR)),
        )
        for run in sorted_runs(snapshot)
    ]
    return Table(
        title=f"Runs of {snapshot.source}",
        columns=columns(
            "run", "state", "ranks", "step", "time", "MFU", "goodput", "flow", wrap="run"
        ),
        rows=tuple(rows),
        notes=(f"flow: {letters_legend(snapshot.runs)}", *left_out_notes(snapshot.left_out)),
    )


def heard_text(run: LiveRun) -> str:
    """`1,024`, or `1,023/1,024` where one was not heard of."""
    return f"{run.world:,}" if run.ranks == run.world else f"{run.ranks:,}/{run.world:,}"


def letters_legend(runs: Sequence[LiveRun]) -> str:
    """`= compute, s straggler`: the letters that the bars of these runs use."""
    used = [name for name in ACCOUNTS if any(run.accounts.get(name, 0.0) > 0 for run in runs)]
    names: dict[str, str] = {}
    for name in used:
        parent, _, child = name.partition(".")
        names.setdefault(LETTERS[name], child if LETTERS[name] in "Mk" else parent)
    return ", ".join(f"{letter} {name}" for letter, name in names.items()) or "no steps yet"


def live_findings_table(snapshot: LiveSnapshot, sort: SortBy) -> Table:
    rows = [
        (
            usd_text(finding.usd_per_hour),
            format_share(finding.share),
            age_text(finding, snapshot.taken),
            finding.rule,
            run_name(finding.run, snapshot.runs) or "-",
            ranks_label(finding.ranks) or "-",
            finding.title + (" (silenced)" if is_quiet(finding, snapshot.taken) else ""),
        )
        for finding in sorted_findings(snapshot, sort)
    ]
    count = len(rows)
    order = {"cost": "most expensive first", "age": "oldest first", "run": "by run"}[sort]
    return Table(
        title=f"{count} open finding{f's, {order}' if count > 1 else ''}",
        columns=columns(
            "$/h",
            "share",
            "age",
            "rule",
            "run",
            "ranks",
            "finding",
            right="$/h,share,age",
            wrap="run,ranks,finding",
        ),
        rows=tuple(rows),
    )


def slowest_ranks_table(ranks: Sequence[tuple[LiveRun, LiveRank]]) -> Table:
    rows = tuple((run.name or run.run, *rank_cells(rank)) for run, rank in ranks)
    return Table(
        title="Slowest ranks, against peers of their role",
        columns=columns(
            "run",
            "rank",
            "node",
            "late",
            "own",
            "step",
            right="rank,late,own,step",
            wrap="run,node",
        ),
        rows=rows,
        notes=("late: after the median of its peers at collectives; own: a step without waits",),
    )


def rank_cells(rank: LiveRank) -> tuple[str, str, str, str, str]:
    return (
        str(rank.rank),
        rank.node,
        seconds_text(rank.late_seconds),
        seconds_text(rank.own_seconds),
        f"{rank.step:,}",
    )


def nodes_table(nodes: Sequence[LiveNode], now: float) -> Table:
    return Table(
        title="Nodes with signals, and silent ones",
        columns=columns("node", "GPUs", "last seen", "signals", right="GPUs", wrap="node,signals"),
        rows=tuple(
            (
                node.node,
                str(node.gpus),
                f"{format_seconds(max(now - node.last_seen, 0.0))} ago",
                "; ".join(node.signals[-3:]) or "-",
            )
            for node in nodes
        ),
    )


def finding_rows(
    finding: LiveFinding, runs: Sequence[LiveRun], now: float
) -> list[tuple[str, str]]:
    """All there is to know of a finding, as a label and a text each."""
    rows = [
        ("run", run_name(finding.run, runs) or "-"),
        ("ranks", ranks_label(finding.ranks) or "-"),
        ("nodes", nodes_label(finding.nodes) or "-"),
        ("account", finding.account),
        ("costs", _costs(finding)),
        ("since", f"{age_text(finding, now)}, reported after {_delay(finding)}"),
        ("confidence", format_share(finding.confidence)),
        *(("evidence", evidence_text(each)) for each in finding.evidence),
    ]
    if finding.remedy is not None:
        rows.append(("remedy", finding.remedy.change))
        rows += [("command", finding.remedy.command)] * bool(finding.remedy.command)
        rows += [("risk", finding.remedy.risk)] * bool(finding.remedy.risk)
    if is_quiet(finding, now):
        left = (finding.silenced_until or now) - now
        rows.append(("silenced", f"for another {format_seconds(left)}"))
    return [*rows, ("key", finding.key)]


def _costs(finding: LiveFinding) -> str:
    text = f"{format_share(finding.share)} of the run's GPU time"
    if finding.usd_per_hour is not None:
        text += f", ${finding.usd_per_hour:,.2f} an hour"
    return text if finding.usd is None else f"{text}, ${finding.usd:,.2f} so far"


def _delay(finding: LiveFinding) -> str:
    return format_seconds(max(finding.opened - finding.onset, 0.0))


def is_quiet(finding: LiveFinding, now: float) -> bool:
    return finding.silenced_until is not None and finding.silenced_until > now


def _is_silent(node: LiveNode, now: float) -> bool:
    return now - node.last_seen > SILENT_SECONDS


def age_text(finding: LiveFinding, now: float) -> str:
    seconds = max(now - finding.onset, 0.0)
    for size, unit in ((DAY_SECONDS, "d"), (HOUR_SECONDS, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= 2 * size or unit == "s":
            return f"{seconds / size:.0f} {unit}"
    return ""


def usd_text(usd: float | None) -> str:
    return "-" if usd is None else f"{usd:,.2f}"


def seconds_text(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)
