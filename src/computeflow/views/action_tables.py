"""Actions of a controller as tables: what was decided, why, what was done, and what it gained."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Sequence

from computeflow.actions.journal import ActionRecord, OptionRecord, StepRecord
from computeflow.units import format_seconds
from computeflow.views.tables import Table, columns

_UNKNOWN = "-"


def actions_table(store: str, actions: Sequence[ActionRecord]) -> Table:
    return Table(
        title=f"actions of {store}",
        columns=columns("id", "at", "state", "what", "predicted", "measured", wrap="what"),
        rows=tuple(
            (
                str(action.id),
                _moment(action.at),
                action.state,
                f"{action.title}: {action.reason}" if action.state == "nothing" else action.title,
                _seconds(action.predicted_gain_seconds),
                _seconds(_measured(action)),
            )
            for action in actions
        ),
        notes=("Gains are seconds of the job, less what the move costs.",) if actions else (),
    )


def action_tables(action: ActionRecord) -> list[Table]:
    facts = {
        "state": action.state,
        "at": _moment(action.at),
        "run": action.run,
        "job": action.job
        if action.new_job == action.job
        else f"{action.job}, now {action.new_job}",
        "why": action.reason,
        "evidence": "; ".join(action.evidence),
        "approved": f"{action.approved_by}, {_moment(action.approved_at)}"
        if action.approved_by
        else "",
        "note": action.note,
        "predicted gain": _seconds(action.predicted_gain_seconds),
        "expected gain": _seconds(action.expected_gain_seconds),
        **_outcome(action),
    }
    rows = tuple((name, text) for name, text in facts.items() if text)
    title = f"action {action.id}: {action.title}"
    tables = [Table(title=title, columns=columns("field", "value", wrap="value"), rows=rows)]
    if action.options:
        tables.append(_options_table(action.options))
    if action.steps:
        tables.append(_steps_table(action.steps))
    return tables


def _outcome(action: ActionRecord) -> dict[str, str]:
    outcome = action.outcome
    if outcome is None:
        return {}
    before, after = outcome.step_seconds_before, outcome.step_seconds_after
    return {
        "measured gain": _seconds(outcome.measured_gain_seconds),
        "step before": _seconds(before),
        "step after": _seconds(after),
        "remaining steps": _UNKNOWN
        if outcome.remaining_steps is None
        else f"{outcome.remaining_steps:,}",
        "spent on the move": _seconds(outcome.move_seconds),
        "steps done again": _seconds(outcome.lost_seconds),
        "from last to first step": _seconds(outcome.restart_seconds),
        "outcome": outcome.note,
    }


def _options_table(options: Sequence[OptionRecord]) -> Table:
    return Table(
        title="options, the best first",
        columns=columns("option", "gain", "price", "net", "why not", wrap="why not"),
        rows=tuple(
            (
                option.action,
                _seconds(option.gain_seconds),
                _seconds(option.price_seconds),
                _seconds(option.net_seconds),
                option.impossible,
            )
            for option in options
        ),
    )


def _steps_table(steps: Sequence[StepRecord]) -> Table:
    return Table(
        title="steps",
        columns=columns("step", "state", "note", "commands", wrap="commands"),
        rows=tuple(
            (
                str(record.step.get("do", "")),
                record.state,
                record.note,
                "; ".join(shlex.join(words) for words in record.commands),
            )
            for record in steps
        ),
    )


def report_tables(store: str, actions: Sequence[ActionRecord]) -> list[Table]:
    """Predicted gain beside measured gain; decisions by state."""
    measured = [action for action in actions if _measured(action) is not None]
    rows = [
        (
            str(action.id),
            action.title,
            _seconds(action.predicted_gain_seconds),
            _seconds(_measured(action)),
            _ratio(action.predicted_gain_seconds, _measured(action)),
        )
        for action in measured
    ]
    predicted = sum(action.predicted_gain_seconds or 0.0 for action in measured)
    gained = sum(_measured(action) or 0.0 for action in measured)
    if len(measured) > 1:
        rows.append(("all", "", _seconds(predicted), _seconds(gained), _ratio(predicted, gained)))
    states: dict[str, int] = {}
    for action in actions:
        states[action.state] = states.get(action.state, 0) + 1
    return [
        Table(
            title=f"what actions of {store} gained",
            columns=columns("id", "action", "predicted", "measured", "of it", wrap="action"),
            rows=tuple(rows),
            notes=() if rows else ("No action has a measured gain yet.",),
        ),
        Table(
            title="decisions by state",
            columns=columns("state", "decisions"),
            rows=tuple((state, str(count)) for state, count in sorted(states.items())),
        ),
    ]


def _measured(action: ActionRecord) -> float | None:
    return None if action.outcome is None else action.outcome.measured_gain_seconds


def _ratio(predicted: float | None, gained: float | None) -> str:
    if not predicted or gained is None:
        return _UNKNOWN
    return f"{100 * gained / predicted:.0f} %"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return _UNKNOWN
    return f"-{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds)


def _moment(at: float | None) -> str:
    if at is None:
        return _UNKNOWN
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
