"""Megatron-LM's arguments: one flag a line, for `pretrain_gpt.py $(grep -v '^#' megatron.args)`.

Such a file is read back, and so are the shell scripts that Megatron's users keep
(`megatron_reader`).
"""

from __future__ import annotations

from typing import ClassVar

from computeflow.files.languages import comment
from computeflow.planning.exports.config_formats import ConfigReading, Setup, WrittenConfig
from computeflow.planning.exports.frameworks.config_keys import (
    Choices,
    contradiction,
    header,
    not_expressed,
    without_model,
)
from computeflow.planning.exports.frameworks.megatron.layout import (
    FP8_RECIPES,
    OFFLOADS,
    SHARDINGS,
    STRATEGIES,
    WAYS,
    dispatcher,
    refuse,
    stages,
)
from computeflow.planning.exports.frameworks.megatron.megatron_reader import SIZES, read_script
from computeflow.planning.exports.frameworks.megatron.shape import Flags, shape_flags


class Megatron:
    name = "megatron"
    version = "core 0.20.0 (d98e8a64)"
    expresses = frozenset(
        "tp pp vp cp ep etp micro_batch recompute sharding replicas offload context "
        "global_batch seq_len precision optimizer checkpoint_steps".split()
    )
    choices: ClassVar[Choices] = {
        "sharding": SHARDINGS,
        "offload": OFFLOADS,
        "precision": ("fp32", "fp16", "bf16", *FP8_RECIPES, "nvfp4"),
        "optimizer": ("adamw", "muon"),
    }
    capabilities: ClassVar[Choices] = {
        "dp_overlap": (False, True),
        "sequence_parallel": (False, True),
    }

    def write(self, setup: Setup) -> WrittenConfig:
        _refuse(setup)
        shape = shape_flags(setup.job.model)
        left_out = not_expressed(setup, self)
        left_out = left_out if shape is None else without_model(left_out)
        title = f"Megatron-LM {self.version} arguments, written by ComputeFlow."
        flags = (shape or {}) | _flags(setup)
        start = (
            f"{_variable(setup)}torchrun ... pretrain_gpt.py $(grep -v '^#' megatron.args) "
            "and your data's flags"
        )
        text = comment([*header(title, setup, left_out), start]) + "".join(
            f"--{key}\n" if value is None else f"--{key} {value}\n" for key, value in flags.items()
        )
        return WrittenConfig(files={"megatron.args": text}, left_out=tuple(left_out))

    def recognises(self, text: str, file_name: str) -> bool:
        return "--tensor-model-parallel-size" in text or "--micro-batch-size" in text

    def read(self, text: str, where: str) -> ConfigReading:
        return read_script(text, where, self.name)


def _refuse(setup: Setup) -> None:
    layout = setup.layout
    refuse(setup, "Megatron-LM")
    if setup.job.optimizer == "muon" and layout.offload == "optimizer":
        why = "only Adam's state moves to the host"
        raise contradiction("Megatron-LM", "optimizer = muon", "offload = optimizer", why)
    if setup.job.optimizer == "muon" and layout.sharding in STRATEGIES:
        why = "Megatron-FSDP does not run it yet; shard with zero1"
        sharding = f"sharding = {layout.sharding}"
        raise contradiction("Megatron-LM", "optimizer = muon", sharding, why)


def _variable(setup: Setup) -> str:
    """Variable without which Megatron-LM does not start before Blackwell; its FSDP refuses it."""
    layout = setup.layout
    split = layout.tp > 1 or layout.cp > 1
    return "CUDA_DEVICE_MAX_CONNECTIONS=1 " if split and layout.sharding not in STRATEGIES else ""


def _flags(setup: Setup) -> Flags:
    job, layout = setup.job, setup.layout
    flags: Flags = {key: getattr(layout, name) for name, key in SIZES.items()}
    flags |= {"expert-tensor-parallel-size": layout.etp, "global-batch-size": job.global_batch}
    flags |= {"seq-length": job.seq_len, "max-position-embeddings": job.seq_len}
    flags |= _groups(setup) | _sharding(setup) | _precision_flags(job.precision) | _memory(setup)
    flags["optimizer"] = "muon" if job.optimizer == "muon" else "adam"
    if job.multi_token:
        flags["mtp-num-layers"] = sum(b.count for b in job.model.prediction_blocks)
    if setup.steps is not None:
        flags["train-iters"] = setup.steps
    if job.checkpoint_steps is not None:
        flags |= {"save": "checkpoints", "save-interval": job.checkpoint_steps}
    return flags


def _groups(setup: Setup) -> Flags:
    layout, layers, flags = setup.layout, setup.job.model.layers, Flags()
    chunks = layout.pp * layout.vp
    if layers % chunks:
        flags["pipeline-model-parallel-layout"] = stages(layers, chunks)
    elif layout.vp > 1:
        flags["num-virtual-stages-per-pipeline-rank"] = layout.vp
    if layout.tp > 1 and setup.stack.sequence_parallel:
        flags["sequence-parallel"] = None
    if layout.cp > 1:
        flags["cp-comm-type"] = WAYS[layout.context]
    if layout.ep > 1:
        flags["moe-token-dispatcher-type"] = dispatcher(setup)
    return flags


def _memory(setup: Setup) -> Flags:
    job, layout = setup.job, setup.layout
    flags: Flags = {}
    if layout.recompute != "none":
        flags["recompute-granularity"] = layout.recompute
    if layout.recompute == "full":
        flags |= {"recompute-method": "uniform", "recompute-num-layers": 1}
    if layout.offload == "optimizer":
        flags |= {"optimizer-cpu-offload": None, "use-precision-aware-optimizer": None}
    if layout.offload == "activations":
        flags["cpu-offloading-num-layers"] = max(job.model.layers - 1, 1)
    return flags


def _sharding(setup: Setup) -> Flags:
    layout, overlaps = setup.layout, setup.stack.dp_overlap
    flags: Flags = {"overlap-grad-reduce": None} if overlaps else {}
    if layout.sharding == "ddp":
        return flags
    flags["use-distributed-optimizer"] = None
    if overlaps:
        flags["overlap-param-gather"] = None
    if layout.sharding in STRATEGIES:
        flags["use-megatron-fsdp"] = None
        flags["data-parallel-sharding-strategy"] = STRATEGIES[layout.sharding]
        flags["ckpt-format"] = "fsdp_dtensor"
    if layout.replicas > 1:
        flags["num-distributed-optimizer-instances"] = layout.replicas
    return flags


def _precision_flags(precision: str) -> Flags:
    if precision in ("fp32", "tf32"):
        return {}
    if precision == "fp16":
        return {"fp16": None}
    flags: Flags = {"bf16": None}
    if precision in FP8_RECIPES:
        flags |= {"fp8-format": "hybrid" if precision == "fp8" else "e4m3"}
        flags["fp8-recipe"] = FP8_RECIPES[precision]
    elif precision == "nvfp4":
        flags |= {"fp4-format": "e2m1", "fp4-recipe": "nvfp4"}
    return flags
