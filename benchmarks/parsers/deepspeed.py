"""DeepSpeed's DeepSpeedConfig at the plan's number of data-parallel ranks; no key is ignored."""

from __future__ import annotations

import json
from collections.abc import KeysView
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

from benchmarks.parsers.answers import Asked, answer, expect, ranks


class Watched(dict[str, Any]):
    """Records which keys are read, as DeepSpeed ignores top-level keys it does not know."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: set[object] = set()

    def __copy__(self) -> Watched:
        return self

    def __contains__(self, key: object) -> bool:
        self.seen.add(key)
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.seen.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add(key)
        return super().get(key, default)

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        return KeysView(self)


class Pipeline:
    """The grid of a PipelineModule as DeepSpeed reads it; the training script builds the real one."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def get_data_parallel_world_size(self) -> int:
        return self.ranks


def take(request: Asked) -> None:
    tree = Watched(_filled(json.loads(request.text("ds_config.json")), request))
    with ranks(request.gpus):
        config = _configured(tree, request)
    unread = set(tree) - tree.seen - set(request.own_keys)
    expect(not unread, f"keys that nothing reads: {sorted(unread)}")
    names = import_module("deepspeed.runtime.config").DEEPSPEED_OPTIMIZERS
    known = config.optimizer_name in names or "optimizer" not in tree
    expect(known, f"no optimizer {config.optimizer_name}")
    experts = config.expert_parallel_config
    if experts.enabled:
        _check_experts(experts, config.tensor_parallel_config.autotp_size, tree, request)


def _filled(tree: dict[str, Any], request: Asked) -> dict[str, Any]:
    """With what `auto` leaves to the Trainer, as transformers fills it from its arguments."""
    if '"auto"' not in json.dumps(tree):
        return tree
    half = request.job["precision"] in ("bf16", "fp16") and request.job["precision"]
    micro = request.layout["micro_batch"]
    arguments = import_module("transformers").TrainingArguments(
        use_cpu=True,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=request.job["global_batch"] // (micro * request.dp),
        **({half: True} if half else {}),
    )
    arguments.use_cpu = False
    filled = import_module("transformers.integrations.deepspeed").HfTrainerDeepSpeedConfig(tree)
    with mock.patch.object(type(arguments), "world_size", request.gpus):
        filled.trainer_config_process(arguments)
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=4096))
    filled.trainer_config_finalize(arguments, model, num_training_steps=100)
    return dict(filled.config)


def _configured(tree: Watched, request: Asked) -> Any:
    """Configure as `deepspeed.initialize` does with the file alone."""
    comm = import_module("deepspeed.comm")
    comm.init_distributed("fake", verbose=False)
    mesh = None
    if "sequence_parallel_size" in tree and "data_parallel_size" in tree:
        sizes = (tree["data_parallel_size"], tree["sequence_parallel_size"])
        mesh = comm.initialize_mesh_device(sizes, ("data_parallel", "sequence_parallel"))
    unit = Pipeline(request.dp) if "stages" in tree.get("pipeline", {}) else None
    config = import_module("deepspeed.runtime.config")
    return config.DeepSpeedConfig(tree, mpu=unit, mesh_device=mesh)


def _check_experts(experts: Any, tensors: int, tree: Watched, request: Asked) -> None:
    """Check expert parallelism as the engine does when AutoEP is on."""
    config = import_module("deepspeed.module_inject.auto_ep_config")
    folding = import_module("deepspeed.module_inject.auto_ep_folding")
    stages = tree.get("pipeline", {}).get("stages", 1)
    sequence = tree.get("sequence_parallel_size", 1)
    config.validate_autoep_config(experts, request.gpus, stages, tensors, sequence)
    folding.build_folding_spec(
        world_size=request.gpus,
        pp_size=stages,
        tp_size=max(tensors, 1),
        ep_size=experts.autoep_size,
        etp_size=experts.expert_tensor_parallel_size,
        mp_mode="tp" if tensors > 1 else "sp",
    )


if __name__ == "__main__":
    answer(take)
