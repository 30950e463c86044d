"""The map of recorded runs: each run's ranks by its own hosts, with the wait that each caused.

What is shown is what the history of runs knows; no run is audited for it. Two runs on one host have a
node each: a map of one moment would show one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from computeflow.auditing.run_history import RunRanks
from computeflow.units import format_count
from computeflow.views.fleet_maps import MAX_CELLS, FleetGroup, FleetMap, FleetMeasure, FleetRun

_AGENT = "recordings have no node readings (computeflow agent sends them to a collector)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFleet:
    run: FleetRun
    device: str
    """"cpu" where the host computed."""
    ranks: RunRanks


@dataclass(slots=True)
class _Columns:
    nodes: list[str] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    ranks: list[tuple[int, ...]] = field(default_factory=list)
    run_of: list[int] = field(default_factory=list)
    waits: dict[int, float] = field(default_factory=dict)
    groups: list[FleetGroup] = field(default_factory=list)
    left_out: int = 0

    def add(self, number: int, fleet: RecordedFleet) -> None:
        """Nodes of a run, as far as they fit on the map."""
        found, first = fleet.ranks, len(self.nodes)
        for place in sorted(range(len(found.hosts)), key=found.hosts.__getitem__):
            rows = np.flatnonzero(found.host == place)
            at = sum(self.cells)
            if self.left_out or at + len(rows) > MAX_CELLS:
                self.left_out += len(rows)
                continue
            rows = rows[np.argsort(found.rank[rows], kind="stable")]
            self.nodes.append(found.hosts[place] or "host not recorded")
            self.cells.append(len(rows))
            self.ranks.append(tuple(np.repeat(found.rank[rows], 2).tolist()))
            self.run_of.append(number)
            waits = found.wait_seconds[rows].tolist()
            self.waits |= {at + cell: wait for cell, wait in enumerate(waits) if wait == wait}
        if nodes := len(self.nodes) - first:
            self.groups.append(FleetGroup(name=fleet.run.name, above="", nodes=nodes))


def recorded_map(fleets: Sequence[RecordedFleet]) -> FleetMap:
    """The runs in this order; those that do not fit are left out."""
    columns = _Columns()
    for number, fleet in enumerate(fleets):
        columns.add(number, fleet)
    shown = [fleets[number] for number in dict.fromkeys(columns.run_of)]
    several = len(shown) > 1
    all_nodes = FleetGroup(name="all nodes", above="", nodes=len(columns.nodes))
    return FleetMap(
        of=_cells_of(shown),
        grouped_by="run" if several else "node",
        groups=tuple(columns.groups) if several else (all_nodes,),
        nodes=tuple(columns.nodes),
        cells=tuple(columns.cells),
        ranks=tuple(columns.ranks),
        runs=tuple(fleet.run for fleet in shown),
        run_of=tuple(columns.run_of),
        measures=_measures(columns, fleets, shown),
        notes={},
        left_out=columns.left_out,
    )


def _cells_of(shown: Sequence[RecordedFleet]) -> Literal["GPU", "rank"]:
    return "rank" if any(fleet.device == "cpu" for fleet in shown) else "GPU"


def _measures(
    columns: _Columns, fleets: Sequence[RecordedFleet], shown: Sequence[RecordedFleet]
) -> tuple[FleetMeasure, ...]:
    nothing = (None,) * len(columns.nodes)
    reasons = [fleet.ranks.waits_missing for fleet in shown]
    unknown = list(dict.fromkeys(reason for reason in reasons if reason))
    waits = f"who waits is not known of {{}}: it needs {'; '.join(unknown)}"
    no_mfu = "the FLOPs of the model, or the device, are not known of {}"
    without = sum(fleet.run.mfu is None for fleet in shown)
    wait_missing, some_waits = _missing(sum(map(bool, reasons)), len(shown), waits)
    mfu_missing, some_mfu = _missing(without, len(shown), no_mfu)
    return (
        FleetMeasure(
            name="wait",
            title="Wait caused",
            unit="s a step",
            by_node=nothing,
            by_cell=columns.waits,
            missing=wait_missing,
            missing_of=some_waits,
        ),
        FleetMeasure(
            name="mfu",
            title="MFU",
            unit="%",
            by_node=tuple(fleets[number].run.mfu for number in columns.run_of),
            missing=mfu_missing,
            missing_of=some_mfu,
            better="more",
        ),
        *(
            FleetMeasure(name=name, title=title, unit=unit, by_node=nothing, missing=_AGENT)
            for name, title, unit in (
                ("power", "Power", "W"),
                ("temperature", "Temperature", "°C"),
                ("health", "Health", ""),
            )
        ),
    )


def _missing(unknown: int, runs: int, reason: str) -> tuple[str, str]:
    """Why nothing is known, and why it is not of some runs."""
    if not unknown:
        return "", ""
    text = reason.format("this run" if runs == 1 else f"{unknown} of {format_count(runs, 'run')}")
    return (text, "") if unknown == runs else ("", text)
