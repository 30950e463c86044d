"""`actions list|show|approve|dismiss|undo|return|report`: a controller's journal, and words to it."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from computeflow import codec
from computeflow.actions.journal import ActionJournal, ActionRecord
from computeflow.actions.node_returns import approved_return
from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import File
from computeflow.collection.outputs.snapshots import STATE_FILE, read_store
from computeflow.collection.store.state_database import StateDatabase
from computeflow.collection.store.state_reading import read_state
from computeflow.views.action_tables import action_tables, actions_table, report_tables
from computeflow.views.tables import Table

T = TypeVar("T")
_BUSY_SECONDS = 5.0
"""A person waits: a collector writes for milliseconds."""
_LISTED = 3


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ActionsAnswer(Answer):
    store: str
    actions: tuple[ActionRecord, ...]
    left_out: tuple[str, ...] = ()
    """Why actions that cannot be read are not there."""

    def _data(self) -> dict[str, Any]:
        return {
            "schema": "computeflow.actions/1",
            "store": self.store,
            "actions": codec.encode(self.actions),
            "left_out": list(self.left_out),
        }

    @property
    def headline(self) -> str:
        return f"Left out: {'; '.join(self.left_out[:_LISTED])}" if self.left_out else ""

    def tables(self) -> list[Table]:
        return [actions_table(self.store, self.actions)]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ActionAnswer(Answer):
    action: ActionRecord
    headline_text: str = ""

    def _data(self) -> dict[str, Any]:
        return {"schema": "computeflow.action/1", **codec.encode(self.action)}

    @property
    def headline(self) -> str:
        return self.headline_text

    def tables(self) -> list[Table]:
        return action_tables(self.action)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ActionsReportAnswer(Answer):
    store: str
    actions: tuple[ActionRecord, ...]

    def _data(self) -> dict[str, Any]:
        measured = [each for each in self.actions if _gains(each) is not None]
        pairs = [pair for each in measured if (pair := _gains(each)) is not None]
        return {
            "schema": "computeflow.actions-report/1",
            "store": self.store,
            "measured": len(pairs),
            "predicted_gain_seconds": sum(predicted for predicted, _ in pairs),
            "measured_gain_seconds": sum(gained for _, gained in pairs),
            "actions": codec.encode(self.actions),
        }

    def tables(self) -> list[Table]:
        return report_tables(self.store, self.actions)


def _gains(action: ActionRecord) -> tuple[float, float] | None:
    outcome = action.outcome
    if outcome is None or outcome.measured_gain_seconds is None:
        return None
    if action.predicted_gain_seconds is None:
        return None
    return action.predicted_gain_seconds, outcome.measured_gain_seconds


@contextmanager
def _journal(store: File) -> Iterator[ActionJournal]:
    state = StateDatabase(_state_file(store), busy_seconds=_BUSY_SECONDS)
    try:
        yield ActionJournal(state)
    finally:
        state.close()


def _read_journal(store: File, look: Callable[[ActionJournal], T]) -> T:
    """What `look` makes of the journal, without a write to the store."""
    path = _state_file(store)
    return read_state(path, lambda base: look(ActionJournal(StateDatabase(path, reading=base))))


def _state_file(store: File) -> Path:
    read_store(Path(store))  # says what is wrong with it
    return Path(store) / STATE_FILE


@checked
def list_actions(*, store: File) -> ActionsAnswer:
    """All actions of a store's journal, the newest first."""
    actions, left_out = _read_journal(store, lambda journal: journal.readable())
    return ActionsAnswer(
        store=str(store), actions=tuple(reversed(actions)), left_out=tuple(left_out)
    )


@checked
def show_action(number: int, *, store: File) -> ActionAnswer:
    """One action: its evidence, prices, steps and outcome."""
    return ActionAnswer(action=_read_journal(store, lambda journal: journal.get(number)))


@checked
def approve_action(number: int, *, store: File, by: str | None = None) -> ActionAnswer:
    """Let a controller carry out a proposed action; who approved it is kept.

    `by` names a person whom the caller knows; by default it is the user of this process.
    """
    with _journal(store) as journal:
        action = journal.move(
            number,
            ("proposed",),
            "approved",
            approved_by=by or _user(),
            approved_at=time.time(),
            note="",
        )
    text = f"Action {number} is approved: the controller of this store carries it out."
    return ActionAnswer(action=action, headline_text=text)


@checked
def dismiss_action(number: int, *, store: File, by: str | None = None) -> ActionAnswer:
    """Say no to a proposed action."""
    with _journal(store) as journal:
        action = journal.move(
            number, ("proposed", "approved"), "dismissed", note=f"dismissed by {by or _user()}"
        )
    return ActionAnswer(action=action, headline_text=f"Action {number} is dismissed.")


@checked
def undo_action(number: int, *, store: File, by: str | None = None) -> ActionAnswer:
    """Ask the controller to undo an action that is done, as far as that is possible."""
    with _journal(store) as journal:
        action = journal.move(number, ("done",), "undoing", note=f"undone for {by or _user()}")
    text = f"Action {number} is undone by the controller of this store when it next looks."
    return ActionAnswer(action=action, headline_text=text)


@checked
def return_node(node: str, *, store: File) -> ActionAnswer:
    """Ask the controller to probe a drained node, and to take it back if it is accepted."""
    with _journal(store) as journal:
        action = journal.add(approved_return(node, at=time.time(), by=_user()))
    text = f"Action {action.id}: the controller of this store probes {node} when it next looks."
    return ActionAnswer(action=action, headline_text=text)


@checked
def report_actions(*, store: File) -> ActionsReportAnswer:
    """Predicted gain beside measured gain, action by action and in all."""
    actions = _read_journal(store, lambda journal: journal.all())
    return ActionsReportAnswer(store=str(store), actions=tuple(actions))


def _user() -> str:
    """Who typed it: the user of the process, and who became that by sudo."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    before = os.environ.get("SUDO_USER", "")
    return f"{name} (sudo by {before})" if before and before != name else name
