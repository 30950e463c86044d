"""Megatron-Bridge's overrides of a recipe: every key of the file must be one of the recipe's container.

Recipes of named models ask a hub for the model; the plain GPT recipe does not, and has the same
container. For latent attention its model is Bridge's provider of that.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.parsers.answers import Asked, absent, answer, expect, same
from benchmarks.parsers.megatron import FIELDS, a_gpu, lend

ABSENT = (
    "transformer_engine",
    "megatron.energon",
    "modelopt",
    "nvidia_resiliency_ext",
    "wandb",
    "flashinfer",
    "mlflow",
    "comet_ml",
    "peft",
    "diffusers",
    "timm",
    "open_clip",
)


def take(request: Asked) -> None:
    overrides = import_module("megatron.bridge.training.utils.omegaconf_utils")
    file = Path(request.folder) / "megatron_bridge.yaml"
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(request.gpus)}
    if request.layout["sharding"] in ("ddp", "zero1"):
        rank["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # as the launch files of such a plan have it
    with mock.patch.dict(os.environ, rank), a_gpu(request.job["precision"]):
        container = _recipe("multi_latent_attention: true" in file.read_text())
        if request.own_keys:
            _take_shape(container, request)
        _check_keys(import_module("yaml").safe_load(file.read_text()), container, "")
        config = overrides.process_config_with_overrides(container, config_filepath=str(file))
        import_module("megatron.bridge.training.config").runtime_config_update(config)
    _compare(config, request)


def _check_keys(tree: dict[str, Any], config: Any, above: str) -> None:
    """Check that the container has every key, as Bridge ignores unknown ones."""
    for key, value in tree.items():
        expect(hasattr(config, key), f"no key {above}{key}")
        if isinstance(value, dict):
            _check_keys(value, getattr(config, key), f"{above}{key}.")


def _recipe(latent: bool) -> Any:
    container = import_module(
        "megatron.bridge.recipes.gpt.vanilla_gpt"
    ).vanilla_gpt_pretrain_config()
    if latent:
        provider = import_module("megatron.bridge.models.mla_provider").MLAModelProvider
        container.model = provider(num_layers=1, hidden_size=128, num_attention_heads=1)
    return container


def _take_shape(container: Any, request: Asked) -> None:
    """What a user's file leaves to the recipe of its model: sizes, and bf16."""
    job, model = request.job, container.model
    model.num_layers, model.hidden_size = job["layers"], job["hidden"]
    model.num_attention_heads = job["heads"]
    container.mixed_precision = import_module(
        "megatron.bridge.training.mixed_precision"
    ).bf16_mixed()


def _compare(config: Any, request: Asked) -> None:
    for ours, theirs in FIELDS.items():
        if ours != "micro_batch":
            same(getattr(config.model, theirs), request.layout[ours], request, ours)
    same(config.train.micro_batch_size, request.layout["micro_batch"], request, "micro_batch")
    same(config.train.global_batch_size, request.job["global_batch"], request, "global_batch")
    same(
        config.model.recompute_granularity or "none",
        request.layout["recompute"],
        request,
        "recompute",
    )
    expect(config.data_parallel_size == request.dp, f"{config.data_parallel_size} copies")


if __name__ == "__main__":
    lend()
    import_module("megatron.training.arguments")  # before the packages that it would look for
    absent(*ABSENT)
    answer(take)
