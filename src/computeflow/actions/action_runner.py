"""`ActionRunner`: carries an action on, step by step, each written down before it is done.

It keeps nothing in memory: after a kill, another one goes on from what the journal says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from computeflow.actions.engine import Engine, Preview, RefusedStepError, StepProgress
from computeflow.actions.journal import ActionJournal, ActionRecord, StepRecord
from computeflow.actions.run_steps import advance_run_step, find_run_step, preview_run_step
from computeflow.actions.steps import (
    CheckpointNow,
    CheckSaved,
    Drain,
    OpenWindow,
    ProbeNode,
    SetInterval,
    Step,
    step_from,
    step_name,
)
from computeflow.collection.run_facts import without_secrets

_OF_THE_RUN = (CheckpointNow, SetInterval, OpenWindow, CheckSaved)
Say = Callable[[str], None]


class ActionRunner:
    def __init__(
        self,
        engine: Engine,
        journal: ActionJournal,
        *,
        store: str,
        now: Callable[[], float],
        say: Say,
        max_step_seconds: float,
    ) -> None:
        self._engine, self._journal, self._store = engine, journal, store
        self._now, self._say, self._max_step_seconds = now, say, max_step_seconds

    def advance(self, action: ActionRecord) -> ActionRecord:
        """Do what can be done now of an action that is approved or started."""
        if action.state == "approved":
            action = self._journal.save(replace(action, state="started"), before="approved")
            self._say(f"action {action.id} begins: {action.title}")
        if (failed := _failed_step(action)) is not None:  # killed while it gave up
            return self._give_up(action, failed.note)
        while (place := next_step(action)) is not None:
            try:
                action, done = self._advance_step(action, place)
            except RefusedStepError as error:
                return self._fail(action, place, str(error))
            if not done:
                return self._in_time(action, place)
        self._say(f"action {action.id} is done: {action.title}")
        return self._journal.save(replace(action, state="done"), before="started")

    def _advance_step(self, action: ActionRecord, place: int) -> tuple[ActionRecord, bool]:
        record = action.steps[place]
        step = step_from(record.step)
        if record.state == "waiting":
            record = replace(record, state="started", found=self._find(step), began=self._now())
            action = self._keep(action, place, record)
        progress = self._progress(step, self.key(action, place), record.found)
        if progress.done or progress.commands or progress.note != record.note:
            record = _after(record, progress, self._now())
            action = self._keep(action, place, record)
            self._say(f"action {action.id}, {step_name(step)}: {progress.note or 'done'}")
        return action, progress.done

    def _keep(self, action: ActionRecord, place: int, record: StepRecord) -> ActionRecord:
        return self._journal.save(with_step(action, place, record))

    def _find(self, step: Step) -> dict[str, Any]:
        if isinstance(step, _OF_THE_RUN):
            return find_run_step(step)
        return self._engine.find(step)

    def _progress(self, step: Step, key: str, found: dict[str, Any]) -> StepProgress:
        if isinstance(step, _OF_THE_RUN):
            return advance_run_step(step, key, found)
        return self._engine.advance(step, key, found)

    def _in_time(self, action: ActionRecord, place: int) -> ActionRecord:
        record = action.steps[place]
        if record.began is not None and self._now() - record.began > self._max_step_seconds:
            return self._fail(
                action, place, f"not reached within {self._max_step_seconds:.0f} s: {record.note}"
            )
        return action

    def fail(self, action: ActionRecord, why: str) -> ActionRecord:
        """Give up an action that is started, at the step that it has come to."""
        place = next_step(action)
        return action if place is None else self._fail(action, place, why)

    def _fail(self, action: ActionRecord, place: int, why: str) -> ActionRecord:
        record = replace(action.steps[place], state="failed", ended=self._now(), note=why)
        return self._give_up(self._keep(action, place, record), why)

    def _give_up(self, action: ActionRecord, why: str) -> ActionRecord:
        """Undo what keeps a node out or lets it in: it goes on as it was."""
        undone = self._undo_steps(action, only=(Drain, ProbeNode))
        self._say(f"action {action.id} failed: {why}")
        return self._journal.save(replace(undone, state="failed", note=why), before="started")

    def undo(self, action: ActionRecord) -> ActionRecord:
        """Undo an action whose undoing was asked for."""
        try:
            undone = self._undo_steps(action, only=(object,))
        except RefusedStepError as error:
            self._say(f"action {action.id} cannot be undone: {error}")
            failed = replace(action, state="done", note=f"not undone: {error}")
            return self._journal.save(failed, before="undoing")
        self._say(f"action {action.id} is undone")
        return self._journal.save(replace(undone, state="undone"), before="undoing")

    def _undo_steps(self, action: ActionRecord, only: tuple[type[Any], ...]) -> ActionRecord:
        """Undo steps of these kinds, the last one first; one that failed keeps its state and note."""
        for place in reversed(range(len(action.steps))):
            record = action.steps[place]
            step = step_from(record.step)
            if record.state in ("waiting", "undone") or not isinstance(step, only):
                continue
            if isinstance(step, _OF_THE_RUN):
                continue
            progress = self._engine.undo(step, self.key(action, place), record.found)
            if record.state == "failed":
                record = replace(record, commands=(*record.commands, *_masked(progress)))
            else:
                record = replace(_after(record, progress, self._now()), state="undone")
            action = self._keep(action, place, record)
        return action

    def preview(self, action: ActionRecord, place: int) -> Preview:
        step = step_from(action.steps[place].step)
        if isinstance(step, _OF_THE_RUN):
            return preview_run_step(step)
        return self._engine.preview(step, self.key(action, place))

    def key(self, action: ActionRecord, place: int) -> str:
        """What marks a step's work at the engine: the store, the action's number, the step's."""
        return f"{self._store}-{action.id}.{place}"


def next_step(action: ActionRecord) -> int | None:
    """Index of the first step that is not done."""
    for place, record in enumerate(action.steps):
        if record.state in ("waiting", "started"):
            return place
    return None


def _failed_step(action: ActionRecord) -> StepRecord | None:
    return next((record for record in action.steps if record.state == "failed"), None)


def with_step(action: ActionRecord, place: int, record: StepRecord) -> ActionRecord:
    steps = (*action.steps[:place], record, *action.steps[place + 1 :])
    return replace(action, steps=steps)


def _masked(progress: StepProgress) -> tuple[tuple[str, ...], ...]:
    """The commands that were given, without what looks like a secret: people read the journal."""
    return tuple(tuple(without_secrets(words)) for words in progress.commands)


def _after(record: StepRecord, progress: StepProgress, now: float) -> StepRecord:
    return replace(
        record,
        state="done" if progress.done else record.state,
        ended=now if progress.done else None,
        commands=(*record.commands, *_masked(progress)),
        note=progress.note,
        result={**record.result, **progress.result},
    )
