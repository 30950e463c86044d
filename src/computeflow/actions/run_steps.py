"""Steps that reach a run itself: commands to its recorder, and the check of what it saved.

A command is a file in the run folder's `control`, named after the action: written once, whoever looks.
The ranks do it between two steps and answer in their own files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from computeflow.actions.engine import Found, Preview, RefusedStepError, StepProgress
from computeflow.actions.recorded_steps import read_attempts
from computeflow.actions.saved_checkpoints import latest_checkpoint
from computeflow.actions.steps import CheckpointNow, CheckSaved, OpenWindow, RunStep, SetInterval
from computeflow.collection.launching import write_command

_LEAD_SECONDS = 3.0
"""How far ahead a step is that all ranks must have heard of: recorders look every 0.4 s, and a shared
disk may show a file a second or two late."""
_DONE = ("done", "started")
_WORDS: dict[type[Any], str] = {
    CheckpointNow: "checkpoint",
    SetInterval: "interval",
    OpenWindow: "window",
}


def find_run_step(step: RunStep) -> dict[str, Any]:
    """What the run is at before the step: the step of its attempt after which ranks obey."""
    if isinstance(step, CheckSaved):
        return {}
    attempts = read_attempts(Path(step.folder))
    if not attempts or not attempts[-1].steps:
        raise RefusedStepError(f"{step.folder}: no steps are recorded there")
    last = attempts[-1]
    seconds = last.steps[-1].seconds
    ahead = max(2, round(_LEAD_SECONDS / max(seconds, 1e-4)))
    wanted = getattr(step, "step", 0)
    return {"attempt": last.attempt, "step": max(wanted, last.steps[-1].number + ahead)}


def advance_run_step(step: RunStep, key: str, found: Found) -> StepProgress:
    if isinstance(step, CheckSaved):
        return _check_saved(step)
    do = _WORDS[type(step)]
    name = f"computeflow-{key}-{do}.json"
    folder = Path(step.folder)
    if not (folder / "control" / name).exists():
        command: dict[str, Any] = {"do": do, "step": int(found["step"])}
        if isinstance(step, SetInterval):
            command["steps"] = step.steps
        try:
            write_command(folder, command, name)
        except OSError as error:
            raise RefusedStepError(f"{folder}: {error.strerror or error}") from None
        return StepProgress(done=False, note=f"asked for {do} after step {found['step']}")
    return _answer(folder, name, do, found)


def _answer(folder: Path, name: str, do: str, found: Found) -> StepProgress:
    attempts = [each for each in read_attempts(folder) if each.attempt == found["attempt"]]
    answer = attempts[-1].answers.get(name, "") if attempts else ""
    if answer in _DONE:
        return StepProgress(done=True, note=f"{do}: {answer}")
    if answer:
        raise RefusedStepError(f"{do}: the run says: {answer}")
    if attempts and attempts[-1].ended is not None:
        raise RefusedStepError(f"{do}: the run ended before it came to it")
    return StepProgress(done=False, note=f"waits for {do}")


def _check_saved(step: CheckSaved) -> StepProgress:
    saved = latest_checkpoint(Path(step.folder))
    if saved is not None and not saved.fault and saved.saved >= step.since:
        return StepProgress(
            done=True, note=f"{saved.path} is whole", result={"checkpoint": saved.path}
        )
    if step.since:
        return StepProgress(done=False, note="waits for a checkpoint that is whole and newer")
    why = "none is there" if saved is None else saved.fault
    raise RefusedStepError(f"{step.folder}: no checkpoint to go on from: {why}")


def preview_run_step(step: RunStep) -> Preview:
    rights = "write to the run folder"
    match step:
        case CheckpointNow():
            changes = f"all ranks of {step.folder} save a checkpoint between two steps"
        case SetInterval():
            changes = f"{step.folder} saves every {step.steps:,} steps"
        case OpenWindow():
            changes = f"all ranks of {step.folder} open a profiler window"
        case CheckSaved():
            changes = f"nothing: a checkpoint in {step.folder} is checked first"
            rights = f"read {step.folder}"
    return Preview(commands=(), changes=changes, undo="", rights=rights)
