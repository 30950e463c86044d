"""Clipping of gradients: it is part of the update, so its calls are spans of the optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from computeflow.recorder.imports import when_imported
from computeflow.recorder.places import wrap_all
from computeflow.recorder.process_recorder import Recorder
from computeflow.recorder.steps import OPTIMIZER

_FUNCTIONS = ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm")
_SHARDED = "torch.distributed.fsdp.fully_sharded_data_parallel"


def watch_clipping(torch: Any, recorder: Recorder) -> None:
    around = functools.partial(_clipping, torch, recorder)
    for module in (
        torch.nn.utils,
        torch.nn.utils.clip_grad,
    ):  # one name each, for both ways to import
        wrap_all(_FUNCTIONS, around, module)
    paths = ("FullyShardedDataParallel.clip_grad_norm_",)
    when_imported(_SHARDED, functools.partial(wrap_all, paths, around))


def _clipping(torch: Any, recorder: Recorder, clip: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(clip)
    def clipped(*arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return clip(*arguments, **options)
        span = recorder.watch.resume(OPTIMIZER)  # of one parameter after the other
        try:
            return clip(*arguments, **options)
        finally:
            recorder.watch.end(span)

    return clipped
