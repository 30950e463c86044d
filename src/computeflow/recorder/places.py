"""Functions of libraries that evaluate, save, load or run backward: known by their names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from computeflow.recorder.imports import when_imported
from computeflow.recorder.process_recorder import spanning
from computeflow.recorder.steps import BACKWARD, DATA, EVALUATION

PLACES: dict[str, dict[str, tuple[str, ...]]] = {
    EVALUATION: {
        "lightning.pytorch.loops.evaluation_loop": ("_EvaluationLoop.run",),
        "megatron.training.training": ("evaluate",),
        "pytorch_lightning.loops.evaluation_loop": ("_EvaluationLoop.run",),
        "torchtitan.components.validate": ("Validator.validate",),
        "transformers.trainer": ("Trainer.evaluate", "Trainer.predict"),
    },
    BACKWARD: {
        "deepspeed.runtime.engine": ("DeepSpeedEngine.backward",),
        "megatron.core.pipeline_parallel.schedules": ("custom_backward",),
    },
    DATA: {"nvidia.dali.plugin.pytorch": ("DALIGenericIterator.__next__",)},
}


def watch_places() -> None:
    for letter, modules in PLACES.items():
        around = functools.partial(spanning, letter)
        for name, paths in modules.items():
            when_imported(name, functools.partial(wrap_all, paths, around))


def wrap_all(paths: tuple[str, ...], around: Callable[[Any], Any], module: Any) -> None:
    for path in paths:
        *owners, name = path.split(".")
        owner = functools.reduce(lambda at, part: getattr(at, part, None), owners, module)
        wrap(owner, name, around)


def wrap(owner: Any, name: str, around: Callable[[Any], Any]) -> None:
    """Replace a function by one around it, where it is there."""
    function = getattr(owner, name, None)
    if function is not None:
        setattr(owner, name, around(function))
