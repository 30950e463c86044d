"""A topology as tables: its levels, and what contradicts itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from computeflow.cluster.topology import Problem, Shape, Topology
from computeflow.views.tables import Table, columns

_LIMIT = 60


def topology_levels(topology: Topology) -> list[dict[str, Any]]:
    """Of each level from the block up: switches, groups of nodes and their sizes."""
    switches = Counter(topology.levels.values())
    found = []
    for level, groups in enumerate(topology.groups if topology.nodes else ()):
        sizes = Counter(groups).values()
        if level or max(sizes) > 1:
            found.append(
                {
                    "level": level,
                    "switches": switches[level],
                    "groups": len(sizes),
                    "nodes": [min(sizes), max(sizes)],
                    "oversubscription": topology.oversubscription.get(level),
                }
            )
    return found


def topology_table(
    topology: Topology, shape: Shape | None, unlisted: int, to: Path | None
) -> Table:
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
    rails = Counter(len(node.paths) for node in topology.nodes if node.paths and node.paths[0].nic)
    nodes = f"{len(topology.nodes):,} nodes" if topology.nodes else "One node"
    width = f", most with {rails.most_common(1)[0][0]} rails" if rails else ""
    gpus = f", {shape.gpus:,} devices" if shape else ""
    return Table(
        title=f"{nodes}{gpus}{width}",
        columns=columns(
            "level",
            "switches",
            "groups",
            "nodes in one",
            "oversubscription",
            right="switches,groups,nodes in one,oversubscription",
        ),
        rows=tuple(rows),
        notes=tuple(_notes(topology, shape, unlisted, to)),
    )


def _notes(
    topology: Topology, shape: Shape | None, unlisted: int, to: Path | None
) -> Iterator[str]:
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
        yield f"Problems: {unlisted:,} (--check lists them)."
    if to is not None:
        yield f"Written to {to}."


def problem_table(problems: Sequence[Problem]) -> Table:
    hidden = len(problems) - _LIMIT
    return Table(
        title="Problems" if problems else "No problems",
        columns=columns("rule", "where", "what", wrap="what"),
        rows=tuple((p.rule, p.where, p.what) for p in problems[:_LIMIT]),
        notes=(f"{hidden:,} more not shown (-o json has all).",) if hidden > 0 else (),
    )
