"""transformers' HfArgumentParser into TrainingArguments, and the plugins that are made of them.

What asks the machine for a GPU that has bf16 or tf32 is told that it is there; nothing else is stubbed.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.parsers.answers import Asked, answer, expect, same

FILES = ("trainer.json", "trainer.yaml")
RANK = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29577",
    "ACCELERATE_USE_CPU": "true",
}


def take(request: Asked) -> None:
    transformers = import_module("transformers")
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    able: Any = {f"is_torch_{name}_available": lambda: True for name in ("bf16_gpu", "tf32")}
    module = "transformers.training_args"
    with mock.patch.dict(os.environ, RANK), mock.patch.multiple(module, **able):
        (arguments,) = parser.parse_dict(_written(request))
        batch = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
        expect(batch * request.gpus == request.job["global_batch"], f"{batch} sequences on a GPU")
        _check_sharding(arguments, request)


def _written(request: Asked) -> dict[str, Any]:
    """The file's values, without the user's own keys for other programs."""
    (file,) = (file for file in Path(request.folder).iterdir() if file.name in FILES)
    tree = import_module("yaml").safe_load(file.read_text())
    fields = import_module("transformers").TrainingArguments.__dataclass_fields__
    known = {
        key: value for key, value in tree.items() if key in fields or key not in request.own_keys
    }
    if isinstance(known.get("deepspeed"), str) and "deepspeed" in request.own_keys:
        known["deepspeed"] = {"zero_optimization": {"stage": 3}}  # the file is not here
    return known


def _check_sharding(arguments: Any, request: Asked) -> None:
    kinds = import_module("accelerate.utils")
    sharding = request.layout["sharding"]
    if arguments.fsdp_plugin_args is not None:
        plugin = kinds.FullyShardedDataParallelPlugin(**arguments.fsdp_plugin_args)
        expect(plugin.fsdp_version == 2, f"FSDP of version {plugin.fsdp_version}")
        expect(not request.says("sharding") or sharding == "fsdp", f"fsdp for {sharding}")
    if arguments.deepspeed is not None:
        plugin = arguments.deepspeed_plugin
        stage = plugin.deepspeed_config["zero_optimization"]["stage"]
        same(f"zero{stage}", sharding, request, "sharding")


if __name__ == "__main__":
    answer(take)
