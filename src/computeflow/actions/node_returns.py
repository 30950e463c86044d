"""Nodes that actions drained come back: probed first, by an action of its own: `return_action`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from computeflow.actions.engine import ClusterState
from computeflow.actions.journal import ACTIVE, RETURN_NODE, ActionRecord, StepRecord
from computeflow.actions.past_actions import excluded_nodes
from computeflow.actions.steps import ProbeNode, step_data


def return_action(node: str, *, at: float, mode: str, reason: str) -> ActionRecord:
    """Probe a drained node, and take it back if it is accepted."""
    return ActionRecord(
        at=at,
        kind=RETURN_NODE,
        state="advised" if mode == "advise" else "proposed",
        mode=mode,
        run="",
        job="",
        nodes_in=(node,),
        title=f"{RETURN_NODE} {node}",
        reason=reason,
        steps=(StepRecord(step=step_data(ProbeNode(node=node))),),
    )


def due_returns(
    records: Sequence[ActionRecord], cluster: ClusterState, *, after: float, now: float, mode: str
) -> list[ActionRecord]:
    """Returns of nodes that were drained or refused so long ago, and that nothing runs on."""
    due = []
    for row in excluded_nodes(records, cluster):
        node = cluster.nodes[row.node]
        tries = [each for each in records if row.node in each.nodes_in and each.at >= row.since]
        returns = [each for each in tries if each.kind == RETURN_NODE]
        if node.busy or not node.is_up or any(_is_open(each) for each in returns):
            continue
        last = max([row.since, *(each.ended_at or each.at for each in returns)])
        if now - last >= after:
            reason = f"drained by {row.why} {now - row.since:,.0f} s ago; probed before it returns"
            due.append(return_action(row.node, at=now, mode=mode, reason=reason))
    return due


def _is_open(action: ActionRecord) -> bool:
    return action.state in (*ACTIVE, "advised", "dismissed")


def approved_return(node: str, *, at: float, by: str) -> ActionRecord:
    """A return that a person asks for."""
    asked = return_action(node, at=at, mode="ask", reason=f"{by} asked for it")
    return replace(asked, state="approved", approved_by=by, approved_at=at)
