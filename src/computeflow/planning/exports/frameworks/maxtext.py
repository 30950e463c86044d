"""MaxText: one YAML file over `base.yml`, for TPUs and GPUs.

A mesh axis has a size inside a slice (`ici_`: a TPU pod's links or an NVLink domain) and one
between slices (`dcn_`). Data-parallel ranks are the axes data, fsdp and expert together; XLA shards
weights over fsdp, context and expert alike.
"""

from __future__ import annotations

import re
from math import gcd, prod
from typing import Any, ClassVar

from computeflow.catalog.models import Model
from computeflow.files.languages import comment, to_yaml
from computeflow.files.parsing import parse_yaml
from computeflow.planning.exports.config_formats import ConfigReading, Setup, WrittenConfig
from computeflow.planning.exports.frameworks.config_keys import (
    Choices,
    ConfigKeys,
    bounded,
    contradiction,
    cut_sizes,
    header,
    not_expressed,
    stated,
    whole,
)
from computeflow.planning.exports.frameworks.maxtext_reading import MEANT_MODELS, read_settings
from computeflow.workload import Layout

_MODELS = {ours: theirs for theirs, ours in MEANT_MODELS.items()}
_HARDWARE = {"Google": "tpu", "NVIDIA": "gpu", "AMD": "gpu"}
_QUANTIZATION = {
    ("Google", "fp8"): "fp8_full", ("Google", "int8"): "int8", ("NVIDIA", "int8"): "int8",
    ("NVIDIA", "fp8"): "te_fp8_currentscaling", ("NVIDIA", "mxfp8"): "te_mxfp8",
    ("NVIDIA", "nvfp4"): "te_nvfp4", ("AMD", "fp8"): "nanoo_fp8", ("AMD", "int8"): "int8",
}  # fmt: skip
_REMAT = {"none": "minimal_with_context", "selective": "minimal", "full": "full"}
"""MaxText's own `none` recomputes all where layers are scanned, which they are by default."""
_KEYS = re.compile(
    r"^(base_config|per_device_batch_size|remat_policy|(ici|dcn)_\w+_parallelism)\s*:", re.MULTILINE
)


class MaxText:
    name = "maxtext"
    version = "0.2.4"
    expresses = frozenset(
        "gpus tp pp vp cp ep etp micro_batch recompute sharding replicas offload context "
        "model global_batch seq_len precision optimizer checkpoint_steps".split()
    )
    choices: ClassVar[Choices] = {
        "sharding": ("ddp", "zero1", "fsdp", "hsdp"),
        "offload": ("none", "optimizer", "parameters", "activations"),
        "precision": ("fp32", "bf16", "fp8", "mxfp8", "nvfp4", "int8"),
        "optimizer": ("adamw", "muon"),
        "model": tuple(_MODELS),
    }
    capabilities: ClassVar[Choices] = {}

    def write(self, setup: Setup) -> WrittenConfig:
        _refuse(setup)
        covered = ("loss_chunks = ", "multi_token = ")
        left_out = [line for line in not_expressed(setup, self) if not line.startswith(covered)]
        left_out += _not_expressed_values(setup)
        title = f"MaxText {self.version} configuration, written by ComputeFlow."
        start = (
            "python3 -m maxtext.trainers.pre_train.train maxtext.yml run_name=NAME "
            "base_output_directory=FOLDER"
        )
        text = comment([*header(title, setup, left_out), start]) + to_yaml(_tree(setup))
        return WrittenConfig(files={"maxtext.yml": text}, left_out=tuple(left_out))

    def recognises(self, text: str, file_name: str) -> bool:
        return bool(_KEYS.search(text))

    def read(self, text: str, where: str) -> ConfigReading:
        return read_settings(ConfigKeys(parse_yaml(bounded(text, where), where), where), self.name)


def _refuse(setup: Setup) -> None:
    layout, accelerator = setup.layout, setup.cluster.accelerator
    if accelerator.vendor not in _HARDWARE:
        raise contradiction("MaxText", accelerator.name, "TPUs and GPUs", "it runs on those")
    if layout.gpus % _slice(setup):
        slices = f"slices of {_slice(setup)}"
        raise contradiction("MaxText", f"{layout.gpus} devices", slices, "slices are alike")
    ranks = setup.dp // layout.replicas
    if ranks % layout.ep:
        name = "dp" if layout.replicas == 1 else "dp / replicas"
        why = "experts are spread over data-parallel ranks"
        raise contradiction("MaxText", f"ep = {layout.ep}", f"{name} = {ranks}", why)
    if layout.sharding == "ddp" and not whole(setup):
        for name, size in cut_sizes(layout, ("cp", "ep")).items():
            why = "that axis shards the weights too; zero1, fsdp or hsdp"
            raise contradiction("MaxText", "sharding = ddp", f"{name} = {size}", why)
    _refuse_pipeline(setup)
    _refuse_batch(setup)
    if setup.job.optimizer == "muon":
        _refuse_muon(setup.job.model)


def _refuse_muon(model: Model) -> None:
    if any(b.experts is not None and b.attention is not None for b in model.blocks):
        why = "of models with experts it knows the matrices of latent attention only"
        raise contradiction("MaxText", "optimizer = muon", f"model = {model.name}", why)


def _refuse_pipeline(setup: Setup) -> None:
    layout, model = setup.layout, setup.job.model
    if layout.pp == 1:
        return
    if model.name not in _MODELS:
        why = "it has no model of that shape, and stages are cut out of one"
        raise contradiction("MaxText", f"pp = {layout.pp}", f"model = {model.name}", why)
    kinds = {block.experts is None for block in model.blocks}
    if len(kinds) > 1:
        why = "a pipeline holds layers of one kind"
        raise contradiction("MaxText", f"pp = {layout.pp}", "dense layers beside experts", why)
    if model.layers % (layout.pp * layout.vp):
        chunks = f"pp x vp = {layout.pp * layout.vp}"
        raise contradiction("MaxText", f"{model.layers} layers", chunks, "stages are alike")
    if setup.accumulation % layout.pp:
        batches = f"{setup.accumulation} micro-batches"
        raise contradiction("MaxText", batches, f"pp = {layout.pp}", "whole rounds only")


def _refuse_batch(setup: Setup) -> None:
    layout, cores = setup.layout, _cores(setup)
    if layout.micro_batch % cores:
        micro = f"micro_batch = {layout.micro_batch}"
        why = "JAX shows every core of a chip as a device"
        raise contradiction("MaxText", micro, f"{cores} cores a chip", why)
    devices, batch = layout.gpus * cores, _forward_batch(setup)
    if int(devices * (batch / devices)) != batch:
        why = "per_device_batch_size would not be exact"
        raise contradiction("MaxText", f"{batch} sequences", f"{devices} devices", why)
    quantization = _QUANTIZATION.get((setup.cluster.accelerator.vendor, setup.job.precision))
    if quantization == "nanoo_fp8" and layout.pp == 1 and setup.accumulation > 1:
        steps = f"{setup.accumulation} micro-batches"
        why = "it goes without gradient accumulation"
        raise contradiction("MaxText", f"quantization = {quantization}", steps, why)


def _cores(setup: Setup) -> int:
    """Devices that JAX shows for one chip."""
    return 2 if setup.cluster.accelerator.name == "tpu-v7" else 1


def _slice(setup: Setup) -> int:
    return min(setup.cluster.domain, setup.layout.gpus)


def _copies(setup: Setup) -> bool:
    return setup.layout.sharding in ("ddp", "zero1") and not whole(setup)


def _forward_batch(setup: Setup) -> int:
    """Sequences of one forward pass; a pipeline takes all its micro-batches at once."""
    rounds = setup.accumulation if setup.layout.pp > 1 else 1
    return setup.layout.micro_batch * setup.dp * rounds


def _not_expressed_values(setup: Setup) -> list[str]:
    layout, precision = setup.layout, setup.job.precision
    accelerator = setup.cluster.accelerator
    lines = _not_expressed_layout(layout, any(block.experts for block in setup.job.model.blocks))
    exchanged = layout.cp > 1 and layout.context == "all-to-all"
    if exchanged and accelerator.vendor != "Google":
        lines.append("context = all-to-all: on TPUs only")
    if precision in ("fp8", "mxfp8", "nvfp4", "int8") and not _quantization(setup):
        lines.append(f"precision = {precision}: not on {accelerator.name}")
    if _cores(setup) > 1:
        devices = layout.gpus * _cores(setup)
        lines.append(f"gpus = {layout.gpus}: JAX counts {devices}, and the axes do")
    return lines


def _not_expressed_layout(layout: Layout, experts: bool) -> list[str]:
    lines = []
    if layout.offload == "activations" and layout.recompute == "none":
        lines.append("recompute = none: what is not moved to the host is computed again")
    if layout.sharding == "zero1" and layout.cp * layout.ep > 1:
        lines.append("sharding = zero1: weights are spread over the axes context and expert too")
    if experts and layout.tp > 1 and 1 in (layout.etp, layout.ep):
        lines.append(f"etp = {layout.etp}: every expert is cut over the tensor axis")
    if layout.pp > 1 and layout.schedule == "1f1b":
        lines.append("schedule = 1f1b: all forward passes of a round come before the backward ones")
    return lines


def _quantization(setup: Setup) -> str:
    return _QUANTIZATION.get((setup.cluster.accelerator.vendor, setup.job.precision), "")


def _tree(setup: Setup) -> dict[str, Any]:
    job, layout = setup.job, setup.layout
    devices = layout.gpus * _cores(setup)
    tree: dict[str, Any] = {
        "base_config": "base.yml",
        "model_name": _MODELS.get(job.model.name, "default"),
        "hardware": _HARDWARE[setup.cluster.accelerator.vendor],
        "per_device_batch_size": _forward_batch(setup) / devices,
        "gradient_accumulation_steps": 1 if layout.pp > 1 else setup.accumulation,
        "max_target_length": job.seq_len,
        "opt_type": "muon" if job.optimizer == "muon" else "adamw",
        "dtype": "float32" if job.precision in ("fp32", "tf32") else "bfloat16",
        "quantization": _quantization(setup),
    }
    if tree["quantization"] in ("fp8_full", "int8"):
        tree["use_qwix_quantization"] = True
    tree |= _axes(setup) | _memory(setup) | _attention(setup)
    if layout.pp > 1:
        tree |= {
            "num_pipeline_microbatches": setup.accumulation,
            "num_layers_per_pipeline_stage": job.model.layers // (layout.pp * layout.vp),
            "num_pipeline_repeats": layout.vp,
        }
    if job.loss_chunks > 1:
        tree["num_vocab_tiling"] = job.loss_chunks
    if job.multi_token:
        tree["mtp_num_layers"] = sum(block.count for block in job.model.prediction_blocks)
    tree["enable_checkpointing"] = job.checkpoint_steps is not None
    return tree | stated(checkpoint_period=job.checkpoint_steps, steps=setup.steps)


def _memory(setup: Setup) -> dict[str, Any]:
    layout = setup.layout
    remat = {"remat_policy": _REMAT[layout.recompute]}
    if layout.offload == "activations":
        remat = {"remat_policy": "minimal_offloaded"}
        if layout.recompute == "full":
            remat = {"remat_policy": "custom", "decoder_layer_input": "offload"}
    return {
        **remat,
        "optimizer_memory_host_offload": layout.offload in ("optimizer", "parameters"),
        "parameter_memory_host_offload": layout.offload == "parameters",
        "shard_optimizer_over_data": layout.sharding == "zero1" and not whole(setup),
    }


def _attention(setup: Setup) -> dict[str, Any]:
    """Ring and head exchange need their kernels; XLA chooses otherwise."""
    if setup.layout.cp == 1:
        return {}
    if setup.cluster.accelerator.vendor != "Google":
        return {
            "context_parallel_strategy": "ring",
            "attention": "cudnn_flash_te",
            "max_segments_per_seq": 32,
        }
    strategy = "ulysses" if setup.layout.context == "all-to-all" else "ring"
    return {"context_parallel_strategy": strategy, "attention": "flash", "use_tokamax_splash": True}


def _axes(setup: Setup) -> dict[str, int]:
    """Sizes of the axes, from the inside out, as much of each inside a slice as fits there."""
    layout, cores = setup.layout, _cores(setup)
    copies = _copies(setup)
    ranks = setup.dp // (layout.replicas * layout.ep)
    sizes = {
        "tensor": layout.tp,
        "context": layout.cp,
        "expert": layout.ep,
        "fsdp": 1 if copies else ranks * cores,
        "data": ranks * cores if copies else layout.replicas,
        "pipeline": layout.pp,
    }
    room = _slice(setup) * cores
    inside, between = {}, {}
    for name, size in sizes.items():
        inside[name] = gcd(size, room)
        between[name] = size // inside[name]
        room //= inside[name]
    assert prod(sizes.values()) == layout.gpus * cores
    return {f"ici_{name}_parallelism": size for name, size in inside.items()} | {
        f"dcn_{name}_parallelism": size for name, size in between.items()
    }
