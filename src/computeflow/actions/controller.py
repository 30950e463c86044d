"""`Controller`: findings in, decisions out, carried out by an engine as far as its mode allows.

Each look: actions that are under way go on first, then those that are done are measured, then jobs in
trouble are decided on. What it knows is in the store; a controller that was killed leaves nothing open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from computeflow.actions.action_plans import plan_steps
from computeflow.actions.action_runner import ActionRunner, next_step
from computeflow.actions.control_limits import ControlLimits, refusal
from computeflow.actions.engine import ClusterState, Engine
from computeflow.actions.job_states import VALID_SECONDS, LiveJob, live_job
from computeflow.actions.journal import (
    ACTED,
    ACTIVE,
    ActionJournal,
    ActionOutcome,
    ActionRecord,
    OptionRecord,
    StepRecord,
)
from computeflow.actions.outcomes import measure
from computeflow.actions.recorded_steps import read_attempts
from computeflow.actions.steps import CheckpointNow, CheckSaved, step_data, step_from
from computeflow.collection.online.live_values import LiveFinding, LiveRun
from computeflow.collection.outputs.snapshots import LiveSnapshot
from computeflow.scheduling import ExcludedNode, JobDecision, MovePolicy, PastMove, decide
from computeflow.scheduling.options import RESTARTS

Mode = Literal["advise", "ask", "auto"]
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
    """`store` is the id of its store: with an action's number it marks what is the controller's."""

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
    ) -> None:
        self._engine, self._journal, self._options = engine, journal, options
        self._read, self._now, self._say = read, now, say
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
        run = replace(run, job=_present_job(run, records))
        findings = _new_findings(run, snapshot, records)
        live = live_job(run, findings, cluster, _excluded(records, cluster))
        if live is None or not live.troubles:
            return False
        decision = decide(
            live.state,
            live.troubles,
            policy=self._options.policy,
            past=_past_moves(records, live.job.job),
        )
        self._take(decision, live, records)
        return True

    def _take(self, decision: JobDecision, live: LiveJob, records: Sequence[ActionRecord]) -> None:
        action = _record(decision, live, self._options.mode)
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


def _new_findings(
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


def _present_job(run: LiveRun, records: Sequence[ActionRecord]) -> str:
    """The job that runs it now: the store hears of a new one only with its first steps."""
    job = run.job
    for action in records:
        if action.run == run.run and action.job == job:
            job = action.new_job
    return job


def _excluded(records: Sequence[ActionRecord], cluster: ClusterState) -> list[ExcludedNode]:
    """Nodes that actions took out and that nobody took back."""
    rows = {}
    for action in records:
        for node in action.nodes_out if action.state in ("started", "done") else ():
            known = cluster.nodes.get(node)
            if known is not None and known.drained:
                rows[node] = ExcludedNode(node=node, since=action.at, why=f"action {action.id}")
    return list(rows.values())


def _past_moves(records: Sequence[ActionRecord], job: str) -> list[PastMove]:
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


def _record(decision: JobDecision, live: LiveJob, mode: Mode) -> ActionRecord:
    option, state = decision.chosen, live.state
    rules = ", ".join(dict.fromkeys(each.rule for each in live.troubles))
    steps = plan_steps(option, live, rules) if decision.acts else ()
    carried = bool(steps) and mode != "advise"
    return ActionRecord(
        at=decision.at,
        kind=option.action,
        state="nothing" if not decision.acts else "proposed" if carried else "advised",
        mode=mode,
        run=decision.run,
        job=decision.job,
        findings=tuple(sorted(decision.troubles or [each.key for each in live.troubles])),
        nodes_out=option.nodes_out,
        nodes_in=option.nodes_in,
        title=_title(decision, rules),
        reason=decision.reason,
        evidence=tuple(_evidence(each) for each in live.findings),
        rests_on=decision.rests_on,
        options=tuple(
            OptionRecord(
                action=each.action,
                gain_seconds=each.gain_seconds,
                price_seconds=each.price.seconds,
                net_seconds=each.net_seconds,
                prices={name: value for name, value in each.price.parts.items() if value},
                usd=each.usd,
                impossible=each.impossible,
            )
            for each in decision.options
        ),
        predicted_gain_seconds=option.lasting_net_seconds if decision.acts else None,
        expected_gain_seconds=option.net_seconds if decision.acts else None,
        remaining_steps=state.remaining_steps,
        step_seconds=None if any(each.is_dead for each in live.troubles) else state.step_seconds,
        valid_until=decision.valid_until if decision.valid_until < float("inf") else None,
        run_folder=live.run.run_folder,
        attempt=live.attempt,
        steps=tuple(StepRecord(step=step_data(step)) for step in steps),
        note="" if steps or not decision.acts else "no engine can do it: a person has to",
    )


def _title(decision: JobDecision, rules: str) -> str:
    option = decision.chosen
    text = f"{option.action}, job {decision.job}"
    if option.nodes_out:
        text += f", off {', '.join(option.nodes_out)}"
    if option.nodes_in:
        text += f", to {', '.join(option.nodes_in)}"
    return f"{text} ({rules})"


def _evidence(finding: LiveFinding) -> str:
    parts = [
        each.what if each.value is None else f"{each.what}: {each.value:.4g} {each.unit}".strip()
        for each in finding.evidence
    ]
    return f"{finding.key} {finding.rule}: {'; '.join(parts)}"


def gain_text(action: ActionRecord) -> str:
    """Predicted gain beside measured gain, in words."""
    outcome, predicted = action.outcome, action.predicted_gain_seconds
    if outcome is None:
        return "not measured yet"
    if outcome.measured_gain_seconds is None:
        lost, restart = outcome.lost_seconds, outcome.restart_seconds
        if lost is None or restart is None:
            return outcome.note
        return f"{lost:.1f} s of steps were done again, {restart:.1f} s went by until then"
    text = f"gained {outcome.measured_gain_seconds:.1f} s"
    return text if predicted is None else f"{text}, {predicted:.1f} s were predicted"


def _quoted(words: Sequence[str]) -> str:
    import shlex

    return shlex.join(words)
