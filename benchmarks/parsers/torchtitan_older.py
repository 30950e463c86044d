"""torchtitan's ConfigManager of 0.1, whose keys have other names; it drops those it does not know."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

from benchmarks.parsers.answers import Asked, answer, expect, same


def take(request: Asked) -> None:
    file = Path(request.folder) / "torchtitan.toml"
    manager = import_module("torchtitan.config_manager").ConfigManager()
    config = manager.parse_args(["--job.config_file", str(file)])
    for section, values in tomllib.loads(file.read_text()).items():
        for key in values:
            known = hasattr(getattr(config, section, None), key)
            expect(known or f"{section}.{key}" in request.own_keys, f"no key {section}.{key}")
    same(config.parallelism.tensor_parallel_degree, request.layout["tp"], request, "tp")
    same(config.activation_checkpoint.mode, request.layout["recompute"], request, "recompute")


if __name__ == "__main__":
    answer(take)
