"""What earlier actions mean for the next decision: moves made, nodes taken out, the present job."""

from __future__ import annotations

from collections.abc import Sequence

from computeflow.actions.engine import ClusterState
from computeflow.actions.journal import ACTED, RETURN_NODE, ActionRecord
from computeflow.collection.online.live_values import LiveFinding, LiveRun
from computeflow.collection.outputs.snapshots import LiveSnapshot
from computeflow.scheduling import ExcludedNode, PastMove


def new_findings(
    run: LiveRun, snapshot: LiveSnapshot, records: Sequence[ActionRecord]
) -> list[LiveFinding]:
    """Open findings that are not of the time before the run's last action."""
    acted = [each for each in records if each.run == run.run and each.state in ACTED]
    ends = [each.ended_at for each in acted if each.ended_at is not None]
    pending = any(each.state == "done" and each.outcome is None for each in acted)
    after = max(ends, default=0.0)
    return [
        each
        for each in snapshot.open_findings
        if each.run == run.run
        and (each.opened > after or (not pending and each.seen > after + 5.0))
    ]


def present_job(run: LiveRun, records: Sequence[ActionRecord]) -> str:
    """The job that runs it now: the store hears of a new one only with its first steps."""
    job = run.job
    for action in records:
        if action.run == run.run and action.job == job:
            job = action.new_job
    return job


def excluded_nodes(records: Sequence[ActionRecord], cluster: ClusterState) -> list[ExcludedNode]:
    """Nodes that actions took out and that nobody took back, those that are probed included."""
    probed = {
        node
        for action in records
        if action.kind == RETURN_NODE and action.state == "started"
        for node in action.nodes_in
    }
    rows = {}
    for action in records:
        for node in action.nodes_out if action.state in ("started", "done") else ():
            known = cluster.nodes.get(node)
            if known is not None and (known.drained or node in probed):
                since = action.acted_at or action.at
                rows[node] = ExcludedNode(node=node, since=since, why=f"action {action.id}")
    return list(rows.values())


def past_moves(records: Sequence[ActionRecord], job: str) -> list[PastMove]:
    """Moves that were made; those of a job that was submitted again count for the new one."""
    jobs = {job}
    for action in reversed(records):
        if action.new_job in jobs:
            jobs.add(action.job)
    return [
        PastMove(
            job=job if action.job in jobs else action.job,
            action=action.kind,
            at=action.acted_at or action.at,
            nodes=action.nodes_out,
            predicted_seconds=action.predicted_gain_seconds,
            measured_seconds=None
            if action.outcome is None
            else action.outcome.measured_gain_seconds,
        )
        for action in records
        if action.state in ACTED
    ]
