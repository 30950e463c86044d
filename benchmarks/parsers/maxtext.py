"""MaxText's pyconfig, given the plan's devices as for ahead-of-time compilation."""

from __future__ import annotations

import os
import tempfile
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

from benchmarks.parsers.answers import Asked, answer, expect


def take(request: Asked) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("DECOUPLE_GCLOUD", "TRUE")
    file = str(Path(request.folder) / "maxtext.yml")
    written = import_module("yaml").safe_load(request.text("maxtext.yml"))
    slices = abs(_product(written, "dcn"))
    with tempfile.TemporaryDirectory() as output:
        users = [
            "run_name=proof",
            f"base_output_directory={output}",
            "skip_jax_distributed_system=true",
            "internal_compile=true",
            f"internal_compile_num_devices={request.gpus}",
            f"num_slices={slices}",
            "log_config=false",
        ]
        config = import_module("maxtext.configs.pyconfig").initialize(["train.py", file, *users])
    devices = _product(written, "ici") * slices
    expect(devices == request.gpus or bool(request.own_keys), f"axes of {devices} devices")
    batch = config.global_batch_size_to_train_on
    expect(batch == request.job["global_batch"], f"{batch} sequences a step")
    expect(config.max_target_length == request.job["seq_len"], f"{config.max_target_length} tokens")


def _product(written: dict[str, Any], kind: str) -> int:
    names = [n for n in written if n.startswith(f"{kind}_") and n.endswith("_parallelism")]
    return prod(int(written[name]) for name in names)


if __name__ == "__main__":
    answer(take)
