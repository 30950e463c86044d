"""`record`: a command with the recorder in its training processes, or a look at one that runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import Quantity, read_quantity
from computeflow.collection.attaching import Attached, attach
from computeflow.collection.launching import Launched, RunTarget, launch, new_folder
from computeflow.collection.run_facts import read_plan
from computeflow.errors import InputError
from computeflow.units import HOUR_SECONDS, format_si
from computeflow.views.tables import Table, columns

_LEAST_WINDOW_SECONDS = 10.0
_ATTACH_SECONDS = 10.0
_MAX_ATTACH_SECONDS = HOUR_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RecordAnswer(Answer):
    launched: Launched

    def _data(self) -> dict[str, Any]:
        data: dict[str, Any] = codec.encode(self.launched)
        return {"schema": "computeflow.record/1", **data}

    @property
    def headline(self) -> str:
        run = self.launched
        if not run.ranks:
            return f"Nothing was recorded: {'; '.join(run.notes)}."
        text = (
            f"{run.ranks} rank{'s' * (run.ranks > 1)}, {run.steps:,} steps, "
            f"{format_si(run.bytes, 'B')}: computeflow audit {run.folder}"
        )
        return "\n".join([text, *run.notes])

    def tables(self) -> list[Table]:
        run = self.launched
        return [
            Table(
                title=f"recorded in {run.folder}",
                columns=columns("ranks", "steps", "bytes", "exit code"),
                rows=(
                    (
                        str(run.ranks),
                        f"{run.steps:,}",
                        format_si(run.bytes, "B"),
                        str(run.exit_code),
                    ),
                ),
                notes=run.notes,
            )
        ]

    @property
    def exit_code(self) -> int:
        """The command's own."""
        return self.launched.exit_code


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AttachAnswer(Answer):
    attached: Attached

    def _data(self) -> dict[str, Any]:
        return {"schema": "computeflow.attached/1", **codec.encode(self.attached)}

    @property
    def headline(self) -> str:
        run = self.attached
        if not run.places:
            return f"Process {run.pid}: {'; '.join(run.notes)}."
        most = run.places[0]
        return f"Process {run.pid} is in {most.code} {100 * most.share:.0f} % of the time."

    def tables(self) -> list[Table]:
        run = self.attached
        facts = [
            "" if run.cores is None else f"{run.cores:.2f} cores busy",
            "" if run.threads is None else f"{run.threads} threads",
            "" if run.resident_bytes is None else f"{format_si(run.resident_bytes, 'B')} resident",
            *run.gpus,
        ]
        return [
            Table(
                title=f"the main thread in {run.samples} samples of {run.seconds:.0f} s",
                columns=columns("your code", "in torch or JAX", "share %"),
                rows=tuple(
                    (place.code, place.framework, f"{100 * place.share:.1f}")
                    for place in run.places
                ),
                notes=(", ".join(filter(None, facts)), f"kept in {run.folder}", *run.notes),
            )
        ]


@checked
def record(
    command: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    name: str | None = None,
    expect: str | Path | None = None,
    kineto: Quantity | None = None,
    attach: int | None = None,
    seconds: float | None = None,
    no_seal: bool = False,
    total_steps: int | None = None,
    checkpoints: str | Path | None = None,
) -> RecordAnswer | AttachAnswer:
    """Run a command and record all that it trains; `kineto` is the time between profiler windows.
    `expect` is a file with the plan that the run is started for.
    When it has ended, its run folder is sealed as Parquet, unless `no_seal`. `total_steps` and
    `checkpoints`, the folder it saves to, are for `control`.

    With `attach`, the id of a process that runs already, look at that for some `seconds` instead.
    """
    words = [str(word) for word in command]
    if attach is not None:
        if expect is not None:
            raise InputError("--attach joins a process that runs: it takes no --expect")
        return _attach(words, out, kineto, attach, seconds)
    if seconds is not None:
        raise InputError("--seconds belongs to --attach: a command is recorded until it ends")
    if total_steps is not None and total_steps < 1:
        raise InputError(f"--total-steps {total_steps}: one or more")
    target = RunTarget(
        total_steps=total_steps, checkpoints="" if checkpoints is None else str(checkpoints)
    )
    return _launch(words, out, name, kineto, expect, seal=not no_seal, target=target)


def _attach(
    words: Sequence[str],
    out: str | Path | None,
    kineto: Quantity | None,
    pid: int,
    seconds: float | None,
) -> AttachAnswer:
    if words or kineto is not None:
        raise InputError("--attach joins a process that runs: it takes no command and no --kineto")
    lasts = _ATTACH_SECONDS if seconds is None else seconds
    if not 1 <= lasts <= _MAX_ATTACH_SECONDS:
        raise InputError(f"--seconds {lasts:g}: 1 to {_MAX_ATTACH_SECONDS:g}")
    if pid < 1:
        raise InputError(f"--attach {pid}: no such process")
    folder = new_folder(None if out is None else Path(out), f"pid-{pid}")
    return AttachAnswer(attached=attach(pid, lasts, folder))


def _launch(
    words: list[str],
    out: str | Path | None,
    name: str | None,
    kineto: Quantity | None,
    expect: str | Path | None,
    *,
    seal: bool,
    target: RunTarget,
) -> RecordAnswer:
    if not words:
        raise InputError("record needs a command: computeflow record -- torchrun ... train.py")
    seconds = None if kineto is None else read_quantity(kineto, "seconds")
    if seconds is not None and seconds < _LEAST_WINDOW_SECONDS:
        raise InputError(f"--kineto {seconds:g} s: at least {_LEAST_WINDOW_SECONDS:g} s apart")
    label = name or Path(words[0]).name
    expected = None if expect is None else read_plan(Path(expect))
    folder = new_folder(None if out is None else Path(out), label)
    launched = launch(
        words,
        folder,
        label,
        window_seconds=seconds,
        seal=seal,
        target=target,
        expected=expected,
    )
    return RecordAnswer(launched=launched)
