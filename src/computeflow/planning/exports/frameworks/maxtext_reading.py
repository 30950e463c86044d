"""A MaxText configuration back into a job and a layout: `read_settings`."""

from __future__ import annotations

from math import prod
from typing import Any

from computeflow.planning.exports.config_formats import ConfigReading
from computeflow.planning.exports.frameworks.config_keys import (
    ConfigKeys,
    first_set,
    reading,
    run_tokens,
    stated,
)
from computeflow.workload.job import MAX_SIZE

MEANT_MODELS = {
    "llama2-7b": "llama-2-7b", "llama2-13b": "llama-2-13b", "llama2-70b": "llama-2-70b",
    "llama3-8b": "llama-3-8b", "llama3-70b": "llama-3-70b", "llama3.1-8b": "llama-3.1-8b",
    "llama3.1-70b": "llama-3.1-70b", "llama3.1-405b": "llama-3.1-405b",
    "llama4-17b-16e": "llama-4-scout", "llama4-17b-128e": "llama-4-maverick",
    "mistral-7b": "mistral-7b", "mixtral-8x7b": "mixtral-8x7b", "mixtral-8x22b": "mixtral-8x22b",
    "deepseek2-16b": "deepseek-v2-lite", "deepseek2-236b": "deepseek-v2",
    "deepseek3-671b": "deepseek-v3", "kimi-k2-1t": "kimi-k2", "gemma-2b": "gemma-2b",
    "gemma-7b": "gemma-7b", "gemma2-2b": "gemma-2-2b", "gemma2-9b": "gemma-2-9b",
    "gemma2-27b": "gemma-2-27b", "gemma3-4b": "gemma-3-4b", "gemma3-12b": "gemma-3-12b",
    "gemma3-27b": "gemma-3-27b", "qwen2.5-1.5b": "qwen2.5-1.5b", "qwen2.5-7b": "qwen2.5-7b",
    "qwen2.5-14b": "qwen2.5-14b", "qwen3-0.6b": "qwen3-0.6b", "qwen3-1.7b": "qwen3-1.7b",
    "qwen3-4b": "qwen3-4b", "qwen3-8b": "qwen3-8b", "qwen3-14b": "qwen3-14b",
    "qwen3-32b": "qwen3-32b", "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3-235b-a22b": "qwen3-235b-a22b", "qwen3-480b-a35b": "qwen3-coder-480b-a35b",
    "gpt3-175b": "gpt3-175b", "gpt-oss-20b": "gpt-oss-20b", "gpt-oss-120b": "gpt-oss-120b",
}  # fmt: skip
_MEANT_QUANTIZATION = {
    "int8": "int8", "fp8": "fp8", "fp8_full": "fp8", "fp8_gpu": "fp8", "nanoo_fp8": "fp8",
    "fp8_nanoo": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "te_fp8_delayedscaling": "fp8",
    "te_fp8_currentscaling": "fp8", "te_mxfp8": "mxfp8", "te_nvfp4": "nvfp4",
    "te_nvfp4_no_rht": "nvfp4",
}  # fmt: skip
_OPTIMIZERS = {"adamw": "adamw", "adam_pax": "adamw", "muon": "muon"}
_DELAYED = ("fp8", "nanoo_fp8", "fp8_gpu", "te_fp8_delayedscaling")
"""Quantisations whose scales are of the step before, so that they need no accumulation."""
_WAYS = {"all_gather": "ring", "ring": "ring", "ulysses": "all-to-all"}
_AXES = (
    "data",
    "fsdp",
    "fsdp_transpose",
    "context",
    "tensor",
    "tensor_sequence",
    "expert",
    "pipeline",
)
_RECOMPUTES = {
    "full": "full",
    "none": "none",
    "minimal_with_context": "none",
    "minimal_flash": "none",
    "minimal_with_context_and_quantization": "none",
}
"""Policies under which all is computed again, or no product of matrices; others lie between."""
_TENSORS = (
    "decoder_layer_input context mlpwi mlpwi_0 mlpwi_1 mlpwo moe_mlpwi_0 moe_mlpwi_1 moe_mlpwo "
    "query_proj key_proj value_proj kv_proj qkv_proj out_proj query_wa_proj kv_wa_proj mla_q "
    "mla_kv attention_out"
).split()
"""Tensors that a custom policy keeps or moves to the host; the others are recomputed, but a layer's
input is kept."""
_OPEN = {"ici_fsdp_parallelism": -1, "dcn_data_parallelism": -1}
"""Sizes that base.yml leaves to the number of devices."""
_KNOWN = (
    "base_config run_name hardware attention use_iota_embed dataset_type "
    "async_checkpointing logits_dot_in_fp32 max_segments_per_seq reuse_example_batch "
    "use_qwix_quantization use_tokamax_splash num_layers_per_pipeline_stage weight_dtype "
    "base_output_directory dataset_path tokenizer_path enable_goodput_recording profiler"
).split()
"""Known, and of no matter to a layout."""


def read_settings(settings: ConfigKeys, name: str) -> ConfigReading:
    notes: list[str] = []
    settings.skip(_KNOWN)
    axes = _axes(settings)
    layout = _sizes(axes, settings, notes)
    layout |= _memory(settings, notes)
    strategy = settings.choice("context_parallel_strategy", _WAYS)
    if layout["cp"] > 1:
        layout["context"] = strategy or "ring"
    model = settings.text("model_name")
    accumulation = settings.size("gradient_accumulation_steps") or 1
    job = stated(
        model=None if model in (None, "default") else MEANT_MODELS.get(model or "", model),
        seq_len=settings.size("max_target_length"),
        precision=_precision(settings, accumulation, notes),
        optimizer=settings.choice("opt_type", _OPTIMIZERS),
        checkpoint_steps=_saving(settings),
        loss_chunks=settings.size("num_vocab_tiling"),
    )
    rounds = _batches(settings, job, layout, accumulation, notes)
    return reading(name, settings, job, layout, notes, stack="jax", accumulation=rounds)


def _axes(settings: ConfigKeys) -> dict[str, int | None]:
    """Devices of every axis, inside and between slices; None where the cluster says it."""
    inside, between = (_axis_sizes(settings, network) for network in ("ici", "dcn"))
    pairs = {axis: (inside[axis], between[axis]) for axis in _AXES}
    return {axis: None if -1 in pair else prod(pair) for axis, pair in pairs.items()}


def _axis_sizes(settings: ConfigKeys, network: str) -> dict[str, int]:
    """Sizes of the axes in one place; at most one of them open (-1)."""
    keys = {axis: f"{network}_{axis}_parallelism" for axis in _AXES}
    sizes: dict[str, int] = {}
    for axis, key in keys.items():
        size = settings.size(key, least=-1)
        if size == 0:
            raise settings.wrong(key, 0, "-1 or a positive number")
        sizes[axis] = size or _OPEN.get(key, 1)
    if len(free := [axis for axis, size in sizes.items() if size == -1]) > 1:
        first, second = (f"{keys[axis]} = -1" for axis in free[:2])
        raise settings.against(first, second, "one axis may be open")
    return sizes


def _sizes(axes: dict[str, int | None], settings: ConfigKeys, notes: list[str]) -> dict[str, Any]:
    closed = {axis: size or 1 for axis, size in axes.items()}
    if max(closed.values()) > MAX_SIZE:
        raise settings.wrong("parallelism", "its axes", f"at most {MAX_SIZE:,} devices")
    tp, pp, ep = closed["tensor"] * closed["tensor_sequence"], closed["pipeline"], closed["expert"]
    repeats = settings.size("num_pipeline_repeats", least=-1) or 1
    layout: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": closed["context"],
        "ep": ep,
        "etp": tp if ep > 1 else 1,
        "vp": max(repeats, 1) if pp > 1 else 1,
    }
    unsharded = axes["fsdp"] == axes["fsdp_transpose"] == 1
    layout |= _sharding(closed, unsharded, settings.flag("shard_optimizer_over_data"))
    if None in axes.values():
        free = ", ".join(axis for axis in axes if axes[axis] is None)
        notes.append(f"as many devices as there are along {free}")
    else:
        layout["gpus"] = prod(closed.values())
    return layout


def _sharding(closed: dict[str, int], unsharded: bool, state: bool | None) -> dict[str, Any]:
    """`state`: the optimizer's is spread over the axis of data."""
    if unsharded and (state or closed["context"] * closed["expert"] == 1):
        return {"sharding": "zero1" if state else "ddp", "replicas": 1}
    copies = closed["data"]
    return {"sharding": "hsdp" if copies > 1 else "fsdp", "replicas": copies}


def _memory(settings: ConfigKeys, notes: list[str]) -> dict[str, Any]:
    recompute, moved = _read_policy(settings, notes)
    state = settings.flag("optimizer_memory_host_offload")
    weights = settings.flag("parameter_memory_host_offload")
    if moved and (state or weights):
        key = "parameter" if weights else "optimizer"
        notes.append(f"activations on the host and {key}_memory_host_offload: the latter is taken")
    offload = first_set("none", parameters=weights, optimizer=state, activations=moved)
    return {"recompute": recompute, "offload": offload}


def _read_policy(settings: ConfigKeys, notes: list[str]) -> tuple[str, bool]:
    """The recomputation, and whether activations move to the host."""
    policy = settings.text("remat_policy") or "full"
    scanned = settings.flag("scan_layers") is not False
    if policy == "custom":
        policies = {key: settings.text(key) for key in _TENSORS if key in settings}
        kept = any(policies.get(key, "remat") != "remat" for key in _TENSORS[1:])
        return "selective" if kept else "full", "offload" in policies.values()
    if policy == "none" and scanned:
        notes.append("remat_policy = none with scan_layers: all is computed again")
        policy = "full"
    moved = policy in ("minimal_offloaded", "qkv_proj_offloaded")
    return _RECOMPUTES.get(policy, "selective"), moved


def _precision(settings: ConfigKeys, accumulation: int, notes: list[str]) -> str | None:
    dtype = settings.choice("dtype", {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"})
    quantization = settings.text("quantization")
    if not quantization:
        return dtype if dtype is not None else None
    if quantization in _DELAYED and accumulation > 1:
        raise settings.against(
            f"quantization = {quantization}",
            f"gradient_accumulation_steps = {accumulation}",
            "its scales go without accumulation",
        )
    if quantization not in _MEANT_QUANTIZATION:
        notes.append(f"quantization = {quantization}: no precision of training here")
    return _MEANT_QUANTIZATION.get(quantization, dtype)


def _saving(settings: ConfigKeys) -> int | None:
    period, on = settings.size("checkpoint_period"), settings.flag("enable_checkpointing")
    if on is False:
        return None
    return period if period is not None else (10_000 if on else None)


def _batches(
    settings: ConfigKeys,
    job: dict[str, Any],
    layout: dict[str, Any],
    accumulation: int,
    notes: list[str],
) -> int | None:
    """Into `job` and `layout`: per device they may be less than one sequence.

    What comes back is the number of micro-batches, where the global batch follows from the devices.
    """
    local = settings.raw("per_device_batch_size")
    rounds = settings.size("num_pipeline_microbatches", least=-1)
    steps = settings.size("steps", least=-1)
    if local is None:
        notes.append("per_device_batch_size is not there: base.yml's 12 is not taken")
        return None
    if isinstance(local, bool) or not isinstance(local, int | float) or not 0 < local <= MAX_SIZE:
        raise settings.wrong("per_device_batch_size", local, "a number above zero")
    layout["micro_batch"] = _micro_batch(settings, layout, local, rounds)
    if "gpus" not in layout:
        notes.append("the global batch follows from the devices")
        devices: int = layout["tp"] * layout["cp"] * layout["pp"]
        micro: int = layout["micro_batch"]
        return int(local * devices) // micro * accumulation
    job["global_batch"] = int(local * layout["gpus"]) * accumulation
    job |= run_tokens(job, steps)
    return None


def _micro_batch(
    settings: ConfigKeys, layout: dict[str, Any], local: float, stated_rounds: int | None
) -> int:
    pp, devices = layout["pp"], layout["tp"] * layout["cp"] * layout["pp"]
    rounds = stated_rounds if pp > 1 and stated_rounds and stated_rounds > 0 else pp
    if rounds % pp:
        raise settings.against(
            f"num_pipeline_microbatches = {rounds}", f"{pp} stages", "whole rounds only"
        )
    micro = local * layout["tp"] * layout["cp"] * pp / rounds
    if micro != int(micro) or micro < 1:
        raise settings.against(
            f"per_device_batch_size = {local}",
            f"{devices} devices of a copy, {rounds} rounds",
            "no whole sequences",
        )
    return int(micro)
