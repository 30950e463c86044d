"""Saving: `torch.save`, distributed checkpoints, safetensors and libraries' own, as the training
thread sees it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from computeflow.recorder.imports import when_imported
from computeflow.recorder.places import wrap, wrap_all
from computeflow.recorder.process_recorder import Recorder, spanning
from computeflow.recorder.steps import CHECKPOINT

_EVENT_NS = 1_000_000
"""Shorter savings are spans, not events."""
_PLACES = {
    "accelerate.accelerator": ("Accelerator.save_state", "Accelerator.save_model"),
    "deepspeed.runtime.engine": ("DeepSpeedEngine.save_checkpoint",),
    "lightning.pytorch.trainer.trainer": ("Trainer.save_checkpoint",),
    "megatron.training.checkpointing": ("save_checkpoint",),
    "pytorch_lightning.trainer.trainer": ("Trainer.save_checkpoint",),
    "safetensors.numpy": ("save_file",),
    "safetensors.torch": ("save_file", "save_model"),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "save_state_dict"),
    "transformers.modeling_utils": ("PreTrainedModel.save_pretrained",),
    "transformers.trainer": ("Trainer._save_checkpoint", "Trainer.save_model"),
}
"""What calls another of these is the one that is noted."""


def watch_saving(torch: Any, recorder: Recorder) -> None:
    around = functools.partial(_saving, recorder)
    torch.save = around(torch.save)
    torch.serialization.save = torch.save
    for name, paths in _PLACES.items():
        when_imported(name, functools.partial(wrap_all, paths, around))
    when_imported(
        "torch.distributed.checkpoint.state_dict_saver",
        lambda module: wrap(module, "async_save", functools.partial(_saving_async, recorder)),
    )


def _saving(recorder: Recorder, save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def saved(*arguments: Any, **options: Any) -> Any:
        span = recorder.watch.begin(CHECKPOINT)
        begin = perf_counter_ns()
        try:
            return save(*arguments, **options)
        finally:
            end = perf_counter_ns()
            recorder.watch.end(span)
            if end - begin > _EVENT_NS and span is not None:
                values = (*arguments, *options.values())
                recorder.guarded("save", _note, recorder, begin, end, save.__name__, values)

    return saved


def _saving_async(recorder: Recorder, save: Callable[..., Any]) -> Callable[..., Any]:
    """What blocks is the copying, and later whoever waits for the rest of it."""

    @functools.wraps(save)
    def saved(*arguments: Any, **options: Any) -> Any:
        answer = copied(*arguments, **options)
        recorder.guarded("save", _watch_waiting, answer)
        return answer

    copied = _saving(recorder, save)
    return saved


def _watch_waiting(answer: Any) -> None:
    for future in (answer, *(getattr(answer, f"{each}_completion", None) for each in _PARTS)):
        if hasattr(future, "result"):
            future.result = spanning(CHECKPOINT, future.result)


_PARTS = ("staging", "upload")
"""Futures of an answer that has two of them."""


def _note(recorder: Recorder, begin: int, end: int, name: str, values: Any) -> None:
    size = None
    for value in values:
        if isinstance(value, (str, os.PathLike)) and os.path.isfile(value):  # noqa: PTH113
            size = os.path.getsize(value)  # noqa: PTH202
    recorder.event("checkpoint", begin, end, bytes=size, text=name)
