"""Decisions as rows of the journal: `decision_record`; `gain_text` says what came of one."""

from __future__ import annotations

from computeflow.actions.action_plans import plan_steps
from computeflow.actions.job_states import LiveJob
from computeflow.actions.journal import ActionRecord, OptionRecord, StepRecord
from computeflow.actions.steps import step_data
from computeflow.collection.online.live_values import LiveFinding
from computeflow.scheduling import DecisionInputs, JobDecision


def decision_record(
    decision: JobDecision, inputs: DecisionInputs, live: LiveJob, mode: str
) -> ActionRecord:
    """A decision with its evidence, its prices, and the steps that would carry it out."""
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
        inputs=inputs,
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
