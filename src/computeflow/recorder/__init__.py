"""The recorder: what a training process keeps of itself, step by step (standard library only).

    computeflow record -- torchrun --nproc-per-node 8 train.py     no change to the code

    from computeflow import recorder                               for those who want to say more
    with recorder.step(): ...                                      a step, where no optimizer tells
    with recorder.phase("augment"): ...                            a phase with a name
    recorder.on_checkpoint(save)                                   what saves when `control` asks
    ray.init(runtime_env=recorder.ray_runtime_env(folder))         workers of Ray

Without `computeflow record`, or `recorder.start(folder)`, all of it does nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from computeflow._lazy import lazy_exports

_EXPORTS = {
    "ray_runtime_env": "starting",
    "on_checkpoint": "commands",
    "on_interval": "commands",
    "on_stop": "commands",
    "start": "starting",
}
__all__ = [*_EXPORTS, "phase", "step"]
__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Note a stretch of the training thread under a name: `data`, `evaluation`, `checkpoint` are
    known; any other stands for itself.
    """
    from computeflow.recorder import process_recorder, steps

    recorder = process_recorder.current()
    if recorder is None:
        yield
        return
    letter = steps.KNOWN.get(name, steps.NAMED)
    span = recorder.watch.begin(letter, None if letter != steps.NAMED else str(name)[:60])
    try:
        yield
    finally:
        recorder.watch.end(span)


@contextlib.contextmanager
def step() -> Iterator[None]:
    """A step of training, where none of torch's optimizers steps, or several do."""
    from computeflow.recorder import process_recorder

    recorder = process_recorder.current()
    if recorder is None:
        yield
        return
    recorder.user_steps = True
    try:
        yield
    finally:
        recorder.watch.boundary()
