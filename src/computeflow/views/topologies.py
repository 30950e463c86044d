"""A topology as tables: its levels, and its contradictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from computeflow.cluster.topology import ClusterShape, Problem, Topology
from computeflow.views.tables import Table, columns

_LIMIT = 60


def topology_levels(topology: Topology) -> list[dict[str, Any]]:
    """Switches, groups of nodes and their sizes by level, from the block up."""
    switches = Counter(topology.levels.values())
    levels = []
    for level, groups in enumerate(topology.groups if topology.nodes else ()):
        sizes = Counter(groups).values()
        if level or max(sizes) > 1:
            levels.append(
                {
                    "level": level,
                    "switches": switches[level],
                    "groups": len(sizes),
                    "nodes": [min(sizes), max(sizes)],
                    "oversubscription": topology.oversubscription.get(level),
                }
            )
    return levels


def topology_headline(
    topology: Topology, shape: ClusterShape | None, problems: int, to: Path | None
) -> str:
    rails = Counter(len(node.paths) for node in topology.nodes if node.paths and node.paths[0].nic)
    nodes = f"{len(topology.nodes):,} nodes" if topology.nodes else "One node"
    gpus = f", {shape.gpus:,} devices" if shape else ""
    width = f", most with {rails.most_common(1)[0][0]} rails" if rails else ""
    written = f" Written to {to}." if to is not None else ""
    count = f"{problems:,}" if problems else "no"
    return f"{nodes}{gpus}{width}; {count} problem{'' if problems == 1 else 's'}.{written}"


def topology_table(topology: Topology, shape: ClusterShape | None, unlisted: int) -> Table:
    rows = [
        (
            {0: "block", 1: "leaf", 2: "spine", 3: "core"}.get(line["level"], str(line["level"])),
            f"{line['switches']:,}" if line["level"] else "",
            f"{line['groups']:,}",
            " to ".join(f"{size:,}" for size in dict.fromkeys(line["nodes"])),
            "" if line["oversubscription"] is None else f"{line['oversubscription']:.2f}",
        )
        for line in topology_levels(topology)
    ]
    notes = " ".join(_notes(topology, shape, unlisted))
    return Table(
        title="Switches and groups of nodes by level",
        columns=columns(
            "level",
            "switches",
            "groups",
            "nodes in one",
            "oversubscription",
            right="switches,groups,nodes in one,oversubscription",
        ),
        rows=tuple(rows),
        notes=(notes,) if notes else (),
    )


def _notes(topology: Topology, shape: ClusterShape | None, unlisted: int) -> Iterator[str]:
    if topology.board is not None:
        board = topology.board
        yield (
            f"In a node: {board.devices} devices, {board.domain} of them joined by NVLink, "
            f"{len(board.nics)} NICs."
        )
    if shape is not None:
        if shape.nic_bytes_per_second:
            yield f"A device's share of its node's rails: {shape.nic_bytes_per_second / 1e9:g} GB/s."
        yield from (f"Assumed: {what}." for what in shape.assumed)
    if unlisted:
        yield "--check lists the problems."


def problem_table(problems: Sequence[Problem]) -> Table:
    hidden = len(problems) - _LIMIT
    return Table(
        title="Problems" if problems else "No problems",
        columns=columns("rule", "where", "problem", wrap="problem"),
        rows=tuple((p.rule, p.where, p.what) for p in problems[:_LIMIT]),
        notes=(f"{hidden:,} more not shown (-o json has all).",) if hidden > 0 else (),
    )
