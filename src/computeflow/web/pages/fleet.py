"""`/fleet`: every GPU at once, by rack and switch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends, Request

from computeflow import codec
from computeflow.cluster.topology import Topology
from computeflow.collection.outputs.rank_places import read_rank_places
from computeflow.units import format_count
from computeflow.views.fleet_maps import (
    HEALTH,
    MAX_CELLS,
    FleetMap,
    FleetRun,
    fleet_map,
    headline,
    problems,
)
from computeflow.views.recorded_fleets import RecordedFleet, recorded_map
from computeflow.web.page_answers import SCHEMA, Content, OpeningDep, empty_content
from computeflow.web.pages.flow import collect_command, no_runs, record_command
from computeflow.web.sources.opening import Opening, RunLine, find_run

_TITLE = "Fleet"
_AGENT = "computeflow agent --collector http://127.0.0.1:8471"


def _topology(request: Request) -> Topology | None:
    topology: Topology | None = getattr(request.app.state, "topology", None)
    return topology


Cabling = Annotated[Topology | None, Depends(_topology)]


def fleet_page(opening: OpeningDep, topology: Cabling, run: str | None = None) -> Content:
    """Every GPU by node and switch, with MFU, wait caused, power, temperature, health."""
    top = opening.top()
    if top is None:
        return _recorded(opening, run)
    snapshot = top.snapshot
    if not snapshot.nodes and not snapshot.runs:
        commands = [_AGENT, collect_command(opening), record_command(opening)]
        text = f"{opening.path} has no nodes yet. Start an agent on each node, or record a run:"
        return empty_content(_TITLE, text, commands, left_out=opening.left_out(None))
    places = read_rank_places(
        opening.path, [each.run for each in snapshot.runs if each.state != "ended"]
    )
    found = fleet_map(snapshot, places, topology)
    if not found.nodes:
        text = "All runs have ended, and no agent reports its node."
        return empty_content(_TITLE, text, [_AGENT], left_out=opening.left_out(None))
    heard = max((node.last_seen for node in snapshot.nodes), default=None)
    return _content(found, opening.left_out(None)) | {"last_heard": heard}


def _recorded(opening: Opening, run: str | None) -> Content:
    """All recorded runs of which ranks are known, or the one that is asked for; none is audited."""
    line = find_run(opening, run)
    if line is None:
        return no_runs(_TITLE, opening)
    lines = opening.runs() if run is None else [line]
    fleets = [
        RecordedFleet(
            run=FleetRun(id=each.id, name=each.name, state=each.state, mfu=each.mfu),
            device=each.device,
            ranks=ranks,
        )
        for each in lines
        if (ranks := opening.ranks(each.id)) is not None and len(ranks.rank)
    ]
    if not fleets:
        text = (
            f"{line.name} is a trace: it does not say which rank was on which node. Record a run:"
        )
        return empty_content(_TITLE, text, [record_command(opening)])
    found = recorded_map(fleets)
    return _content(found, _left_out(opening, found, lines, fleets, asked=run is not None))


def _left_out(
    opening: Opening,
    found: FleetMap,
    lines: Sequence[RunLine],
    fleets: Sequence[RecordedFleet],
    *,
    asked: bool,
) -> list[str]:
    texts = []
    if asked and (others := len(opening.runs()) - 1):
        texts.append(f"{format_count(others, 'other run')}: this one was asked for")
    if without := len(lines) - len(fleets):
        texts.append(f"{format_count(without, 'run')}: it is not recorded which ranks they had")
    if off := len(fleets) - len({*found.run_of}):
        texts.append(f"{format_count(off, 'run')}: the map has {MAX_CELLS:,} ranks at most")
    of = lines[0].id if asked else None
    return [*texts, *opening.left_out(of)]


def _content(found: FleetMap, left_out: Sequence[str]) -> Content:
    return {
        "schema": SCHEMA,
        "title": _TITLE,
        "headline": headline(found),
        "result": codec.encode(found),
        "of": found.of,
        "problems": problems(found),
        "left_out": [*left_out],
        "health": list(HEALTH),
    }
