"""NeMo's recipe overridden by the file, by NeMo-Run's parser; then the objects built from it."""

from __future__ import annotations

import inspect
import os
from importlib import import_module
from typing import Any
from unittest import mock

from benchmarks.parsers.answers import Asked, absent, answer, expect, same
from benchmarks.parsers.megatron import FIELDS, a_gpu, lend

PLAIN = "llama31_8b"
FUSED = ("apply_rope_fusion", "moe_permute_fusion")
"""Fused kernels of Transformer Engine, which a GPU would have."""


def take(request: Asked) -> None:
    lines = request.text("nemo.args").splitlines()
    words = [word for line in lines if not line.startswith("#") for word in line.split()]
    # Without a recipe of its own for the model, the file says so, and any recipe has its keys.
    factory = words[words.index("--factory") + 1] if "--factory" in words else PLAIN
    values = [word for word in words if "=" in word]
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(request.gpus)}
    with mock.patch.dict(os.environ, rank), a_gpu(request.job["precision"]):
        recipes = import_module("nemo.collections.llm.recipes")
        recipe = getattr(recipes, factory).pretrain_recipe()
        parsed = import_module("nemo_run.cli.cli_parser").parse_cli_args(recipe, values)
        for value in values:
            _check_key(parsed, value.partition("=")[0])
        build = import_module("fiddle").build
        for name in FUSED:
            if hasattr(parsed.model.config, name):
                setattr(parsed.model.config, name, False)
        build(parsed.model.config)
        build(parsed.optim.config)
        build(parsed.trainer.strategy)
    _compare(parsed, request)


def _check_key(recipe: Any, key: str) -> None:
    """Check that a key is in what it configures, as NeMo's strategy takes keys that nobody reads."""
    *above, name = key.split(".")
    for step in above:
        recipe = getattr(recipe, step)
    kind = recipe.__fn_or_cls__
    makers: list[Any] = [kind]
    if isinstance(kind, type):
        makers = [vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base)]
    names = {known for maker in makers for known in inspect.signature(maker).parameters}
    expect(name in names, f"no key {key}")


def _compare(parsed: Any, request: Asked) -> None:
    trainer, strategy = parsed.trainer, parsed.trainer.strategy
    for ours, theirs in FIELDS.items():
        if ours != "micro_batch":
            same(getattr(strategy, theirs), request.layout[ours], request, ours)
    same(int(trainer.num_nodes) * int(trainer.devices), request.gpus, request, "gpus")
    same(parsed.data.micro_batch_size, request.layout["micro_batch"], request, "micro_batch")
    same(parsed.data.global_batch_size, request.job["global_batch"], request, "global_batch")
    granularity = parsed.model.config.recompute_granularity or "none"
    same(granularity, request.layout["recompute"], request, "recompute")


if __name__ == "__main__":
    absent("modelopt", "leptonai")
    import_module("nemo.collections.llm")
    lend("2.5.0")
    answer(take)
