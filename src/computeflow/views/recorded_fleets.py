"""The map of one recorded run: its ranks by host, with the wait that each caused."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from computeflow.views.fleet_maps import FleetGroup, FleetMap, FleetMeasure, FleetRun

if TYPE_CHECKING:
    from computeflow.telemetry.run_folders.run_facts import RecordedRank

_AGENT = "recordings have no node readings (computeflow agent sends them to a collector)"


def recorded_map(run: FleetRun, ranks: Sequence[RecordedRank]) -> FleetMap:
    order = sorted(ranks, key=lambda rank: (rank.host, rank.rank))
    hosts = {host: len(list(mine)) for host, mine in groupby(order, key=lambda rank: rank.host)}
    steps = max((rank.booked_steps for rank in order), default=0) or 1
    waits = {cell: rank.waited_for_seconds / steps for cell, rank in enumerate(order)}
    known = any(rank.came_last is not None for rank in order)
    return FleetMap(
        grouped_by="node",
        groups=(FleetGroup(name="all nodes", above="", nodes=len(hosts)),),
        nodes=tuple(host or "host not recorded" for host in hosts),
        cells=tuple(hosts.values()),
        ranks=tuple(
            tuple(end for rank in order if rank.host == host for end in (rank.rank, rank.rank))
            for host in hosts
        ),
        runs=(run,),
        run_of=(0,) * len(hosts),
        measures=(
            FleetMeasure(
                name="wait",
                title="Wait caused",
                unit="s a step",
                by_node=(None,) * len(hosts),
                by_cell=waits if known else {},
                missing="" if known else "no collective of this run shows which ranks wait",
            ),
            FleetMeasure(
                name="mfu",
                title="MFU",
                unit="%",
                by_node=(run.mfu,) * len(hosts),
                missing="" if run.mfu is not None else "the FLOPs of the model are not known",
                better="more",
            ),
            *(
                FleetMeasure(
                    name=name, title=title, unit=unit, by_node=(None,) * len(hosts), missing=_AGENT
                )
                for name, title, unit in (
                    ("power", "Power", "W"),
                    ("temperature", "Temperature", "°C"),
                    ("health", "Health", ""),
                )
            ),
        ),
        notes={},
    )
