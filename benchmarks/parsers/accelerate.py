"""Accelerate's launch command up to the start of ranks, then a rank's plugin from its environment.

The loader refuses unknown sections; keys inside a section become options of `accelerate launch`, so
each must be one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.parsers.answers import Asked, answer, expect, same
from benchmarks.parsers.megatron import a_gpu


def take(request: Asked) -> None:
    launch = import_module("accelerate.commands.launch")
    file = str(Path(request.folder) / "accelerate.yaml")
    parser = launch.launch_command_parser()
    options = {action.dest for action in parser._actions}
    defaults = launch.load_config_from_file(file)
    for section in ("fsdp_config", "deepspeed_config", "megatron_lm_config", "parallelism_config"):
        unknown = set(getattr(defaults, section)) - options - set(request.own_keys)
        expect(not unknown, f"{section}: no options of the launch command: {sorted(unknown)}")
    given = parser.parse_args(
        [
            "--config_file",
            file,
            "--main_process_ip",
            "127.0.0.1",
            "--main_process_port",
            "0",
            "train.py",
        ]
    )
    args, _, _ = launch._validate_launch_command(given)
    expect(args.num_processes == request.gpus, f"{args.num_processes} processes")
    expect(args.num_machines == request.nodes, f"{args.num_machines} machines")
    with _environment(_of_ranks(args, defaults)):
        _build(defaults.distributed_type.value, request)


def _of_ranks(args: Any, defaults: Any) -> dict[str, str]:
    prepare = import_module("accelerate.utils.launch")
    if not args.use_deepspeed:
        return dict(prepare.prepare_multi_gpu_env(args))
    args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
    _, environment = prepare.prepare_deepspeed_cmd_env(args)
    return dict(environment)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _build(engine: str, request: Asked) -> None:
    """Build the plugin of a rank and compare it with the plan."""
    kinds = import_module("accelerate.utils.dataclasses")
    layout = request.layout
    if engine == "FSDP":
        with mock.patch.object(kinds, "is_cuda_available", lambda: True), a_gpu("bf16"):
            plugin = kinds.FullyShardedDataParallelPlugin()
        on_host = getattr(
            plugin.cpu_offload,
            "offload_params",
            type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy",
        )
        same(on_host, layout["offload"] == "parameters", request, "offload")
        same(plugin.activation_checkpointing, layout["recompute"] == "full", request, "recompute")
        if plugin.fsdp_version == 1:
            return
        sizes = import_module("accelerate.parallelism_config").ParallelismConfig()
        same(sizes.total_size, request.gpus, request, "gpus")
        same((sizes.tp_size, sizes.cp_size), (layout["tp"], layout["cp"]), request, "tp")
        expect(
            sizes.dp_shard_enabled or sizes.cp_enabled or request.gpus == 1, "nothing to shard over"
        )
    elif engine == "MEGATRON_LM":
        plugin = kinds.MegatronLMPlugin()
        for ours, theirs in (
            ("tp", "tp_degree"),
            ("pp", "pp_degree"),
            ("cp", "context_parallel_size"),
            ("ep", "expert_model_parallel_size"),
            ("etp", "expert_tensor_parallel_size"),
            ("recompute", "recompute_granularity"),
        ):
            same(getattr(plugin, theirs), layout[ours], request, ours)
        method = plugin.recompute_method if plugin.recompute_granularity == "selective" else None
        expect(method is None, "Megatron-LM takes no recompute_method with selective")
    elif engine == "DEEPSPEED":
        plugin = kinds.DeepSpeedPlugin()
        same(f"zero{plugin.zero_stage}", layout["sharding"], request, "sharding")


if __name__ == "__main__":
    answer(take)
