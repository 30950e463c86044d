"""torchtitan's ConfigManager, its train spec with that flavour, and its mesh of that many GPUs."""

from __future__ import annotations

import copy
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.parsers.answers import Asked, answer, expect, ranks


def take(request: Asked) -> None:
    file = str(Path(request.folder) / "torchtitan.toml")
    config = (
        import_module("torchtitan.config").ConfigManager().parse_args(["--job.config_file", file])
    )
    _check_mesh(config, request)
    for name in config.model.converters:
        module = "mx" if name.endswith(".mx") else "float8"
        import_module(f"torchtitan.components.quantization.{module}")
        known = import_module("torchtitan.protocols.model_converter")._registry_model_converter_cls
        expect(name in known, f"no converter {name}")
    if not request.says("model"):
        return  # torchtitan does not have it
    spec = import_module("torchtitan.protocols.train_spec").get_train_spec(config.model.name)
    expect(config.model.flavor in spec.model_args, f"no flavour {config.model.flavor}")
    arguments = copy.deepcopy(spec.model_args[config.model.flavor])
    arguments.update_from_config(config)
    if config.parallelism.pipeline_parallel_degree > 1:
        _check_pipeline(config, arguments.n_layers, spec)


def _check_mesh(config: Any, request: Asked) -> None:
    sizes = config.parallelism
    with ranks(request.gpus):
        dims = import_module("torchtitan.distributed").ParallelDims(
            dp_shard=sizes.data_parallel_shard_degree,
            dp_replicate=sizes.data_parallel_replicate_degree,
            cp=sizes.context_parallel_degree,
            tp=sizes.tensor_parallel_degree,
            pp=sizes.pipeline_parallel_degree,
            ep=sizes.expert_parallel_degree,
            etp=sizes.expert_tensor_parallel_degree,
            world_size=request.gpus,
        )
        dims.build_mesh()
        parts = dims.seq_len_divisor
        batch = dims.get_mesh("batch").size() if dims.dp_enabled else 1
    expect(batch == request.dp, f"{batch} data-parallel ranks, the plan has {request.dp}")
    expect(config.training.seq_len % parts == 0, f"sequences that are not cut into {parts}")
    local = config.training.local_batch_size * batch
    total = config.training.global_batch_size
    expect(total < 0 or total % local == 0, f"a global batch of no multiple of {local}")


def _check_pipeline(config: Any, layers: int, spec: Any) -> None:
    """Check the pipeline split as torchtitan makes it (pipeline_llm): parts by the schedule."""
    expect(spec.pipelining_fn is not None, f"{config.model.name} has no pipeline")
    schedules = import_module("torch.distributed.pipelining.schedules")
    sizes = config.parallelism
    schedule = schedules.get_schedule_class(sizes.pipeline_parallel_schedule)
    single = issubclass(schedule, schedules.PipelineScheduleSingle)
    parts = sizes.module_fqns_per_model_part
    pipelining = import_module("torchtitan.distributed.pipeline_parallel")
    if parts is None:
        count = sizes.pipeline_parallel_degree * (1 if single else 2)
        parts = pipelining.generate_llm_fqn_per_model_part(
            count,
            layers,
            sizes.pipeline_parallel_first_stage_less_layers,
            sizes.pipeline_parallel_last_stage_less_layers,
        )
    each, rest = divmod(len(parts), sizes.pipeline_parallel_degree)
    expect(not rest, f"{len(parts)} parts on {sizes.pipeline_parallel_degree} stages")
    expect(each == 1 if single else each >= 2, f"{schedule.__name__} with {each} parts a stage")
    split_layers = [name for part in parts for name in part if name.startswith("layers.")]
    expect(
        split_layers == [f"layers.{n}" for n in range(layers)], "layers that are not the model's"
    )
    micro = sizes.pipeline_parallel_microbatch_size
    expect(config.training.local_batch_size % micro == 0, "no whole number of micro-batches")


if __name__ == "__main__":
    answer(take)
