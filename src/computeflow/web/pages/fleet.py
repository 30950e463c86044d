"""`/fleet`: every GPU at once, by rack and switch."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from computeflow import codec
from computeflow.cluster.topology import Topology
from computeflow.collection.outputs.rank_places import read_rank_places
from computeflow.telemetry.run_folders.run_facts import RecordedRun
from computeflow.units import format_count
from computeflow.views.fleet_maps import HEALTH, FleetMap, FleetRun, fleet_map
from computeflow.views.recorded_fleets import recorded_map
from computeflow.web.opening import Opening, find_run
from computeflow.web.page_answers import SCHEMA, Content, Opened, empty_content
from computeflow.web.pages.flow import collect_command, no_runs, record_command

_TITLE = "Fleet"
_AGENT = "computeflow agent --collector http://127.0.0.1:8471"


def _topology(request: Request) -> Topology | None:
    topology: Topology | None = getattr(request.app.state, "topology", None)
    return topology


Cabling = Annotated[Topology | None, Depends(_topology)]


def fleet_page(opening: Opened, topology: Cabling, run: str | None = None) -> Content:
    """Every GPU by node and switch, with MFU, wait caused, power, temperature, health."""
    top = opening.top()
    if top is None:
        return _recorded(opening, run)
    snapshot = top.snapshot
    if not snapshot.nodes and not snapshot.runs:
        commands = [_AGENT, collect_command(opening), record_command(opening)]
        text = f"{opening.path} has no nodes yet. Start an agent on each node, or record a run:"
        return empty_content(_TITLE, text, commands)
    places = read_rank_places(
        opening.path, [each.run for each in snapshot.runs if each.state != "ended"]
    )
    found = fleet_map(snapshot, places, topology)
    if not found.nodes:
        text = "All runs have ended, and no agent reports its node."
        return empty_content(_TITLE, text, [_AGENT])
    heard = max((node.last_seen for node in snapshot.nodes), default=None)
    return _content(found) | {"last_heard": heard}


def _recorded(opening: Opening, run: str | None) -> Content:
    line = find_run(opening, run)
    answer = None if line is None else opening.audit(line.id)
    if line is None or answer is None:
        return no_runs(_TITLE, opening)
    facts = [each.facts for each in answer.report.recordings.observed]
    ranks = next((each.per_rank for each in facts if isinstance(each, RecordedRun)), ())
    if not ranks:
        text = (
            f"{line.name} is a trace: it does not say which rank was on which node. Record a run:"
        )
        return empty_content(_TITLE, text, [record_command(opening)])
    shown = FleetRun(id=line.id, name=line.name, state=line.state, mfu=line.mfu)
    return _content(recorded_map(shown, ranks))


def _content(found: FleetMap) -> Content:
    gpus = sum(found.cells)
    lost = f" {found.left_out:,} more are not shown." if found.left_out else ""
    return {
        "schema": SCHEMA,
        "title": _TITLE,
        "headline": f"{format_count(gpus, 'GPU')} on {format_count(len(found.nodes), 'node')}.{lost}",
        "result": codec.encode(found),
        "health": list(HEALTH),
    }
