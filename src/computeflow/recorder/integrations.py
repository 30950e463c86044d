"""One line for libraries with callbacks: their own step numbers, and saving when `control` asks.

    Trainer(..., callbacks=[integrations.hugging_face()])        transformers
    Trainer(..., callbacks=[integrations.lightning(folder)])     Lightning

Without a recorder in the process they do nothing. Other libraries are described in docs/record.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from computeflow.recorder.commands import on_checkpoint
from computeflow.recorder.process_recorder import current


def _note_number(number: int) -> None:
    """The step that has begun is the library's `number`, which goes on after a resume."""
    recorder = current()
    if recorder is not None:
        recorder.watch.step.extra["o"] = number


class _Wish:
    """That a checkpoint be saved, until it is."""

    def __init__(self) -> None:
        self._open = False
        on_checkpoint(self._ask)

    def _ask(self) -> None:
        self._open = True

    def taken(self) -> bool:
        was, self._open = self._open, False
        return was


def hugging_face() -> Any:
    """A callback for `transformers.Trainer`: its global step; a command saves as `save_steps` does."""
    wish = _Wish()

    class RecorderCallback(_loaded("transformers").TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, _: Any, state: Any, control: Any, **__: Any) -> None:
            _note_number(state.global_step + 1)

        def on_step_end(self, _: Any, __: Any, control: Any, **___: Any) -> Any:
            if wish.taken():
                control.should_save = True
            return control

    return RecorderCallback()


def lightning(folder: Path | str = "checkpoints") -> Any:
    """A callback for Lightning's `Trainer`: its global step; a command saves into `folder`."""
    wish = _Wish()

    class RecorderCallback(_loaded("lightning.pytorch", "pytorch_lightning").Callback):  # type: ignore[misc]
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            _note_number(trainer.global_step + 1)

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if wish.taken():
                trainer.save_checkpoint(Path(folder) / f"step-{trainer.global_step}.ckpt")

    return RecorderCallback()


def _loaded(*names: str) -> Any:
    """The first of these modules that the user's code has imported."""
    for name in names:
        if name in sys.modules:
            return sys.modules[name]
    raise ImportError(f"import {names[-1]} before asking for its callback")
