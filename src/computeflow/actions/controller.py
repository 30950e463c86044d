"""`Controller`: findings in, decisions out, carried out by an engine as far as its mode allows.

Each look: actions that are under way go on first, then those that are done are measured, then jobs in
trouble are decided on. What it knows is in the store; a controller that was killed leaves nothing open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from computeflow.actions.action_runner import ActionRunner, next_step
from computeflow.actions.control_limits import ControlLimits, drain_refusal, refusal
from computeflow.actions.decision_records import decision_record, gain_text
from computeflow.actions.engine import ClusterState, Engine
from computeflow.actions.job_states import VALID_SECONDS, LiveJob, live_job
from computeflow.actions.journal import ACTIVE, ActionJournal, ActionOutcome, ActionRecord
from computeflow.actions.node_returns import due_returns
from computeflow.actions.outcomes import measure
from computeflow.actions.past_actions import (
    excluded_nodes,
    new_findings,
    past_moves,
    present_job,
)
from computeflow.actions.recorded_steps import read_attempts
from computeflow.actions.steps import CheckpointNow, CheckSaved, Drain, step_from
from computeflow.collection.online.live_values import LiveFinding, LiveRun
from computeflow.collection.outputs.snapshots import LiveSnapshot
from computeflow.scheduling import DecisionInputs, ExcludedNode, MovePolicy
from computeflow.scheduling.options import RESTARTS

Mode = Literal["advise", "ask", "auto"]
LookAtJob = Callable[
    [LiveRun, Sequence[LiveFinding], ClusterState, Sequence[ExcludedNode]], LiveJob | None
]
BUSY_SECONDS, HELD_SECONDS, IDLE_SECONDS = 0.5, 1.0, 5.0
"""Between two looks: while something is under way, while a job is in trouble, and else. A look costs
the engine two questions, 0.1 s of 16 nodes."""
_OUTCOME_SECONDS = 1800.0
"""How long after an action its outcome is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlOptions:
    mode: Mode
    limits: ControlLimits | None = None
    limits_name: str = ""

    @property
    def policy(self) -> MovePolicy:
        return MovePolicy() if self.limits is None else self.limits.policy


class Controller:
    """`store` is the id of its store: with an action's number it marks what is the controller's.
    `look` gives the state of a job, `read` what the collector found.
    """

    def __init__(
        self,
        engine: Engine,
        journal: ActionJournal,
        options: ControlOptions,
        *,
        store: str,
        read: Callable[[], LiveSnapshot],
        now: Callable[[], float],
        say: Callable[[str], None],
        look: LookAtJob = live_job,
    ) -> None:
        self._engine, self._journal, self._options = engine, journal, options
        self._read, self._now, self._say, self._look = read, now, say, look
        limits = options.limits
        self._runner = ActionRunner(
            engine,
            journal,
            store=store,
            now=now,
            say=say,
            max_step_seconds=1800.0 if limits is None else limits.max_step_seconds,
        )

    def tick(self) -> float:
        """Look once; the seconds until the next look."""
        snapshot, cluster = self._read(), self._engine.observe()
        for action in self._journal.all(*ACTIVE):
            if action.mode != "advise":
                self._go_on(action, snapshot, cluster)
        for action in self._journal.all("done"):
            self._measure(action)
        held = [self._decide(run, snapshot, cluster) for run in snapshot.runs]
        self._return_nodes(cluster)
        if self._journal.all("approved", "started", "undoing"):
            return BUSY_SECONDS
        return HELD_SECONDS if any(held) else IDLE_SECONDS

    # Actions that are under way

    def _go_on(self, action: ActionRecord, snapshot: LiveSnapshot, cluster: ClusterState) -> None:
        if action.state == "undoing":
            self._runner.undo(action)
            return
        if not _has_acted(action) and (why := why_void(action, snapshot, cluster, self._now())):
            self._say(f"action {action.id} is void: {why}")
            self._journal.save(replace(action, state="void", note=why), before=action.state)
            return
        if action.state != "started":
            refused = self._refusal(action, cluster)
            if refused and refused != action.note:
                self._say(f"action {action.id} waits: {refused}")
                self._journal.save(replace(action, note=refused))
            if refused or (action.state == "proposed" and self._options.mode != "auto"):
                return
            if action.state == "proposed":
                action = self._approve(action)
        elif refused := self._late_refusal(action, cluster):
            self._runner.fail(action, refused)
            return
        self._runner.advance(action)

    def _approve(self, action: ActionRecord) -> ActionRecord:
        approved = replace(
            action,
            state="approved",
            approved_by=f"limits {self._options.limits_name}",
            approved_at=self._now(),
            note="",
        )
        return self._journal.save(approved, before="proposed")

    def _refusal(self, action: ActionRecord, cluster: ClusterState) -> str:
        limits = self._options.limits
        if limits is None:
            return ""
        past = self._journal.all()
        return refusal(limits, action, state=cluster, past=past, now=self._now())

    def _late_refusal(self, action: ActionRecord, cluster: ClusterState) -> str:
        """Whether a node may still be drained: others may have failed since the action began."""
        limits, place = self._options.limits, next_step(action)
        if limits is None or place is None:
            return ""
        if not isinstance(step_from(action.steps[place].step), Drain):
            return ""
        past = self._journal.all()
        return drain_refusal(limits, action, state=cluster, past=past, now=self._now())

    def _measure(self, action: ActionRecord) -> None:
        """Set what was gained beside what was predicted, once the run has steps enough."""
        if action.outcome is not None or action.kind not in RESTARTS or not action.run_folder:
            return
        outcome = measure(action, read_attempts(Path(action.run_folder)), self._now())
        ended = action.ended_at or action.at
        if outcome is None and self._now() - ended > _OUTCOME_SECONDS:
            outcome = ActionOutcome(at=self._now(), note="the run did not go on for long enough")
        if outcome is not None:
            action = self._journal.save(replace(action, outcome=outcome))
            self._say(f"action {action.id}: {gain_text(action)}")

    # Decisions

    def _decide(self, run: LiveRun, snapshot: LiveSnapshot, cluster: ClusterState) -> bool:
        """Decide on a run, if it is in trouble; whether it is."""
        records = self._journal.all()
        if not run.job or any(each.run == run.run and each.state in ACTIVE for each in records):
            return False
        run = replace(run, job=present_job(run, records))
        findings = new_findings(run, snapshot, records)
        live = self._look(run, findings, cluster, excluded_nodes(records, cluster))
        if live is None or not live.troubles:
            return False
        inputs = DecisionInputs(
            state=live.state,
            troubles=live.troubles,
            policy=self._options.policy,
            past=tuple(past_moves(records, live.job.job)),
        )
        self._take(decision_record(inputs.decide(), inputs, live, self._options.mode), records)
        return True

    def _return_nodes(self, cluster: ClusterState) -> None:
        limits, records = self._options.limits, self._journal.all()
        if limits is None or limits.return_after_seconds is None:
            return
        after, mode = limits.return_after_seconds, self._options.mode
        for action in due_returns(records, cluster, after=after, now=self._now(), mode=mode):
            self._tell(self._journal.add(action))

    def _take(self, action: ActionRecord, records: Sequence[ActionRecord]) -> None:
        known = [
            each
            for each in records
            if each.state in ("nothing", "advised")
            and (each.run, each.findings) == (action.run, action.findings)
        ]
        same = [each for each in known if (each.kind, each.state) == (action.kind, action.state)]
        if not same:
            action = self._journal.add(action)
            self._tell(action)
        elif same[-1].reason != action.reason:
            self._journal.save(replace(action, id=same[-1].id, at=same[-1].at))

    def _tell(self, action: ActionRecord) -> None:
        if action.state == "nothing":
            self._say(f"run {action.run}: nothing is done: {action.reason}")
            return
        lines = [f"action {action.id} {action.state}: {action.title}", f"  {action.reason}"]
        for place in range(len(action.steps)):
            shown = self._runner.preview(action, place)
            lines.append(f"  {shown.changes} (rights: {shown.rights})")
            lines += [f"    {_quoted(words)}" for words in shown.commands]
        if action.state == "proposed" and self._options.mode == "ask":
            lines.append(f"  computeflow actions approve {action.id}")
        self._say("\n".join(lines))


def why_void(
    action: ActionRecord, snapshot: LiveSnapshot, cluster: ClusterState, now: float
) -> str:
    """Why what an action rests on no longer holds; "" where it does."""
    findings = {each.key: each for each in snapshot.findings}
    for key in action.findings:
        if key.startswith("engine-"):
            if all(
                name in cluster.nodes and cluster.nodes[name].is_up for name in action.nodes_out
            ):
                return f"{', '.join(action.nodes_out)} answers again"
            continue
        finding = findings.get(key)
        if finding is None or not finding.is_open:
            return f"finding {key} is closed{_why(finding)}"
        if now - finding.seen > VALID_SECONDS and now > (action.valid_until or 0.0):
            return f"finding {key} was not seen for {now - finding.seen:.0f} s"
    return ""


def _why(finding: LiveFinding | None) -> str:
    return f": {finding.why_closed}" if finding is not None and finding.why_closed else ""


def _has_acted(action: ActionRecord) -> bool:
    """Whether more was begun than a checkpoint, which harms nobody."""
    place = next_step(action)
    begun = [record for record in action.steps if record.state != "waiting"]
    kinds = [step_from(record.step) for record in begun]
    harmless = all(isinstance(step, CheckpointNow | CheckSaved) for step in kinds)
    return place is None or not harmless


def _quoted(words: Sequence[str]) -> str:
    import shlex

    return shlex.join(words)
