"""`ActionJournal`: every decision and every step of it, in the store's `actions` table.

    advised                                        mode advise: printed, not done
    proposed -> approved -> started -> done        ask: a person approves; auto: the limits do
                   started -> failed               refused, or out of time; undone where possible
    proposed, approved -> void | dismissed         its finding is over | a person said no
    done -> undoing -> undone
    nothing                                        a decision not to act, with its reason

A step is written down with what was found before it is done, and again when it is: after a kill the
next controller goes on from there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from computeflow import codec
from computeflow.collection.store.state_database import StateDatabase
from computeflow.errors import InputError
from computeflow.scheduling import DecisionInputs

ActionState = Literal[
    "advised", "proposed", "approved", "started", "done", "failed", "void", "dismissed", "undoing",
    "undone", "nothing",
]  # fmt: skip
StepState = Literal["waiting", "started", "done", "failed", "undone"]
ACTIVE: tuple[ActionState, ...] = ("proposed", "approved", "started", "undoing")
"""States from which an action goes on."""
ACTED: tuple[ActionState, ...] = ("started", "done", "failed", "undoing", "undone")
"""States of actions of which something was done."""

RETURN_NODE = "return-node"
"""The kind of an action that probes a drained node and takes it back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    step: dict[str, Any]
    """As `steps.step_data` writes it."""
    state: StepState = "waiting"
    found: dict[str, Any] = field(default_factory=dict)
    """What was there before."""
    began: float | None = None
    ended: float | None = None
    commands: tuple[tuple[str, ...], ...] = ()
    """Those that were given."""
    note: str = ""
    result: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionRecord:
    """A priced option as it was looked at; seconds of the job."""

    action: str
    gain_seconds: float
    price_seconds: float
    net_seconds: float
    prices: dict[str, float] = field(default_factory=dict)
    usd: float | None = None
    impossible: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionOutcome:
    """What was measured after an action, beside what was predicted."""

    at: float
    step_seconds_before: float | None = None
    step_seconds_after: float | None = None
    remaining_steps: int | None = None
    move_seconds: float | None = None
    """From the last step that was kept to the first one after it, beyond a step."""
    lost_seconds: float | None = None
    """Steps that were done again: the ledger's `lost`."""
    restart_seconds: float | None = None
    """From the last step before to the first one after: the ledger's `restart`."""
    measured_gain_seconds: float | None = None
    """(step before - step after) x remaining steps - seconds spent on the move."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRecord:
    id: int = 0
    at: float
    kind: str
    """The kind of option, as `scheduling` names it; or `RETURN_NODE`."""
    state: ActionState
    mode: str
    run: str
    job: str
    findings: tuple[str, ...] = ()
    nodes_out: tuple[str, ...] = ()
    nodes_in: tuple[str, ...] = ()
    title: str = ""
    reason: str = ""
    """Why it was chosen, with the numbers that decided."""
    evidence: tuple[str, ...] = ()
    rests_on: tuple[str, ...] = ()
    inputs: DecisionInputs | None = None
    """What it was decided from: the policy gives the same decision on it again."""
    options: tuple[OptionRecord, ...] = ()
    predicted_gain_seconds: float | None = None
    """Net of the move's price, if the cause would have lasted: what can be measured."""
    expected_gain_seconds: float | None = None
    """Net, with how likely the cause lasts: what decided."""
    remaining_steps: int | None = None
    step_seconds: float | None = None
    """Before it, at the decision."""
    valid_until: float | None = None
    run_folder: str = ""
    attempt: int = 0
    """The run's attempt at the decision."""
    steps: tuple[StepRecord, ...] = ()
    approved_by: str = ""
    approved_at: float | None = None
    note: str = ""
    outcome: ActionOutcome | None = None

    @property
    def new_job(self) -> str:
        """The job that goes on with the run: a new one where it was submitted again."""
        made = [str(step.result["job"]) for step in self.steps if step.result.get("job")]
        return made[-1] if made else self.job

    @property
    def acted_at(self) -> float | None:
        began = [step.began for step in self.steps if step.began is not None]
        return min(began, default=None)

    @property
    def ended_at(self) -> float | None:
        ended = [step.ended for step in self.steps if step.ended is not None]
        return max(ended, default=None)


class ActionJournal:
    def __init__(self, state: StateDatabase) -> None:
        self._state = state

    def add(self, record: ActionRecord) -> ActionRecord:
        finding = record.findings[0] if record.findings else ""
        with self._state.explained():
            number = self._state.add_action(
                record.at, record.run, finding, record.kind, record.state, _text(record)
            )
        return replace(record, id=number)

    def all(self, *states: ActionState) -> list[ActionRecord]:
        """Actions in these states, or all; the oldest first."""
        return [_record(*row) for row in self._rows(*states)]

    def readable(self) -> tuple[list[ActionRecord], list[str]]:
        """All actions that can be read, and why others are left out."""
        records, left_out = [], []
        for row in self._rows():
            try:
                records.append(_record(*row))
            except InputError as error:
                left_out.append(str(error))
        return records, left_out

    def _rows(self, *states: ActionState) -> list[tuple[int, str, str]]:
        with self._state.explained():
            return self._state.actions(states)

    def get(self, number: int) -> ActionRecord:
        for row in self._rows():
            if row[0] == number:
                return _record(*row)
        raise InputError(f"action {number}: no such action")

    def save(self, record: ActionRecord, before: ActionState | None = None) -> ActionRecord:
        """Write a record that was `before` in another state, or still is in its own."""
        was = record.state if before is None else before
        with self._state.explained():
            changed = self._state.change_action(record.id, was, record.state, _text(record))
        if not changed:
            raise InputError(f"action {record.id}: it is no longer {was}")
        return record

    def move(
        self, number: int, allowed: tuple[ActionState, ...], state: ActionState, **changes: Any
    ) -> ActionRecord:
        """Give an action another state; `InputError` where it is in none of those allowed."""
        record = self.get(number)
        if record.state not in allowed:
            raise InputError(
                f"action {number} is {record.state}: only {' or '.join(allowed)} can become {state}"
            )
        return self.save(replace(record, state=state, **changes), before=record.state)


def _text(record: ActionRecord) -> str:
    return json.dumps(codec.encode(record), allow_nan=False)


def _record(number: int, state: str, data: str) -> ActionRecord:
    where = f"action {number}"
    read = codec.from_json(data if isinstance(data, str | bytes) else "", where)
    known = {"id": number, "state": state}
    return codec.decode(ActionRecord, {**read, **known} if isinstance(read, dict) else read, where)
