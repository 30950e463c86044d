"""Megatron-Bridge: one YAML file of values over a recipe's ConfigContainer.

Its scripts take such a file as `--config-file` (`process_config_with_overrides`). The recipe is the
script's choice; the model's shape is written out, so that the plain GPT recipe serves where the
model has none of its own.
"""

from __future__ import annotations

import re
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
    first_set,
    header,
    not_expressed,
    reading,
    run_tokens,
    stated,
    whole,
    without_model,
)
from computeflow.planning.exports.frameworks.megatron.fields import (
    RECIPES,
    Places,
    ShapeFields,
    agreed,
    read_fields,
    read_shape_fields,
    shape_fields,
    write_fields,
)
from computeflow.planning.exports.frameworks.megatron.layout import (
    FP8_MEANT,
    OFFLOADS,
    SHARDINGS,
    STRATEGIES,
    refuse,
)

_PLACES = Places(
    parallel="model.",
    model="model.",
    ddp="ddp.",
    optimizer="optimizer.",
    fsdp="ddp.use_megatron_fsdp",
    fsdp_on=True,
    fsdp_off=False,
    fsdp_too="dist.use_megatron_fsdp",
    instances="ddp.num_distributed_optimizer_instances",
)
_RECIPES = RECIPES | {
    "gpt-oss-20b": "gpt_oss_20b",
    "gpt-oss-120b": "gpt_oss_120b",
    "kimi-k2": "kimi_k2",
    "deepseek-v4-flash": "deepseek_v4_flash",
    "nemotron-3-nano": "nemotron_3_nano",
    "nemotron-3-super": "nemotron_3_super",
    "nemotron-3-ultra": "nemotron_3_ultra",
    "nemotron-3.5-lightning": "nemotron_3_5_lightning",
}
_PLAIN = "vanilla_gpt"
_PRECISIONS = {
    "fp16": "fp16_mixed",
    "bf16": "bf16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "fp8-block": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
_MEANT = {name: ours for ours, name in _PRECISIONS.items()} | {
    "bf16_with_fp8_delayed_scaling_mixed": "fp8",
    "fp16_with_fp8_delayed_scaling_mixed": "fp8",
    "fp16_with_fp8_current_scaling_mixed": "fp8",
    "fp16_with_mxfp8_mixed": "mxfp8",
    "fp16_with_fp8_subchannel_scaling_mixed": "fp8-block",
    "nemotron_h_bf16_with_fp8_current_scaling_mixed": "fp8",
    "nanov2_bf16_with_fp8_current_scaling_mixed": "fp8-block",
    "nemotron_3_super_bf16_with_nvfp4_mixed": "nvfp4",
}
_OPTIMIZERS = {"adam": "adamw", "muon": "muon", "dist_muon": "muon"}
_SECTIONS = re.compile(
    r"^(model|train|dataset|ddp|optimizer|checkpoint|scheduler|mixed_precision):", re.MULTILINE
)
_KEYS = re.compile(
    r"^ +(tensor_model_parallel_size|pipeline_model_parallel_size|micro_batch_size|train_iters"
    r"|global_batch_size|recompute_granularity|use_distributed_optimizer)\s*:",
    re.MULTILINE,
)


class MegatronBridge:
    name = "megatron-bridge"
    version = "0.6.0"
    expresses = frozenset(
        "tp pp vp cp ep etp micro_batch recompute sharding replicas offload context "
        "global_batch seq_len precision optimizer checkpoint_steps".split()
    )
    choices: ClassVar[Choices] = {
        "sharding": SHARDINGS,
        "offload": OFFLOADS,
        "precision": tuple(_PRECISIONS),
        "optimizer": ("adamw", "muon"),
    }
    capabilities: ClassVar[Choices] = {}

    def write(self, setup: Setup) -> WrittenConfig:
        refuse(setup, "Megatron-Bridge")
        _refuse_muon(setup)
        recipe = _RECIPES.get(setup.job.model.name, _PLAIN)
        shape = _shape(setup.job.model, recipe)
        left_out = not_expressed(setup, self)
        if shape or recipe != _PLAIN:
            left_out = without_model(left_out)
        title = f"Megatron-Bridge {self.version} overrides, written by ComputeFlow."
        lines = header(title, setup, left_out)
        lines += [
            f"Over {recipe}_pretrain_config, in a script that hands this file to",
            "process_config_with_overrides: torchrun ... PRETRAIN.py --config-file FILE",
        ]
        text = comment(lines) + to_yaml(_tree(setup, shape))
        return WrittenConfig(files={"megatron_bridge.yaml": text}, left_out=tuple(left_out))

    def recognises(self, text: str, file_name: str) -> bool:
        return bool(_SECTIONS.search(text) and _KEYS.search(text))

    def read(self, text: str, where: str) -> ConfigReading:
        settings = ShapeFields(parse_yaml(bounded(text, where), where), where, "model.")
        notes: list[str] = []
        settings.positions = seq_len = agreed(settings, "dataset.seq_length", "model.seq_length")
        model = read_shape_fields(settings, notes)
        layout = read_fields(settings, _PLACES, notes)
        layout |= stated(micro_batch=settings.size("train.micro_batch_size"))
        optimizer = settings.text("optimizer.optimizer")
        if optimizer == "dist_muon":
            layout |= {"sharding": "zero1", "replicas": 1}
        job = stated(
            model=model,
            global_batch=settings.size("train.global_batch_size"),
            seq_len=seq_len,
            precision=_read_precision(settings),
            optimizer=_OPTIMIZERS.get(optimizer) if optimizer is not None else None,
            checkpoint_steps=_read_saving(settings),
        )
        if optimizer is not None and optimizer not in _OPTIMIZERS:
            notes.append(f"optimizer.optimizer = {optimizer}: not one that is known here")
        job |= run_tokens(job, settings.size("train.train_iters"))
        return reading(self.name, settings, job, layout, notes, stack="megatron")


def _shape(model: Model, recipe: str) -> dict[str, Any]:
    """Fields of the shape; none of latent attention for the plain recipe, whose class lacks them."""
    shape = shape_fields(model) or {}
    return {} if recipe == _PLAIN and shape.get("multi_latent_attention") else shape


def _refuse_muon(setup: Setup) -> None:
    """Refuse Muon: its layer-wise form spreads whole matrices, so gradients and weights stay whole."""
    layout = setup.layout
    if setup.job.optimizer != "muon":
        return
    if layout.offload == "optimizer":
        why = "only Adam's state moves to the host"
        raise contradiction("Megatron-Bridge", "optimizer = muon", "offload = optimizer", why)
    if layout.sharding in STRATEGIES and not whole(setup):
        why = "whole matrices are needed; ddp or zero1"
        sharding = f"sharding = {layout.sharding}"
        raise contradiction("Megatron-Bridge", "optimizer = muon", sharding, why)


def _tree(setup: Setup, shape: dict[str, Any]) -> dict[str, Any]:
    job, layout = setup.job, setup.layout
    tree: dict[str, Any] = {
        "model": {**shape, "seq_length": job.seq_len},
        "train": {"micro_batch_size": layout.micro_batch, "global_batch_size": job.global_batch},
        "dataset": {"seq_length": job.seq_len},
        "optimizer": {"optimizer": _optimizer(setup)},
        "ddp": {},
        "dist": {},
        "checkpoint": {"save": None if job.checkpoint_steps is None else "checkpoints"},
        "mixed_precision": _PRECISIONS.get(job.precision, _PRECISIONS["bf16"]),
    }
    for key, value in write_fields(setup, _PLACES, muon=job.optimizer == "muon").items():
        section, field = key.split(".")
        tree[section][field] = value
    fsdp = tree["ddp"]["use_megatron_fsdp"]
    tree["checkpoint"]["ckpt_format"] = "fsdp_dtensor" if fsdp else "torch_dist"
    if job.checkpoint_steps is not None:
        tree["checkpoint"]["save_interval"] = job.checkpoint_steps
    if setup.steps is not None:
        tree["train"]["train_iters"] = setup.steps
    if job.multi_token:
        tree["model"]["mtp_num_layers"] = sum(b.count for b in job.model.prediction_blocks)
    return tree


def _optimizer(setup: Setup) -> str:
    if setup.job.optimizer != "muon":
        return "adam"
    return "dist_muon" if setup.layout.sharding != "ddp" and not whole(setup) else "muon"


def _read_precision(settings: ConfigKeys) -> str | None:
    """Precision by a recipe's name, or by the fields of one."""
    name = settings.text("mixed_precision")
    if name is None:
        return _read_precision_fields(settings, "mixed_precision.")
    precision = _MEANT.get(name.replace("-", "_"))
    if precision is None:
        raise settings.wrong("mixed_precision", name, f"one of {', '.join(_MEANT)}")
    return precision


def _read_precision_fields(settings: ConfigKeys, prefix: str) -> str | None:
    bf16, fp16, fp32 = (settings.flag(prefix + key) for key in ("bf16", "fp16", "fp32"))
    fp8, fp4 = (settings.text(prefix + key) for key in ("fp8", "fp4"))
    recipe = settings.choice(f"{prefix}fp8_recipe", FP8_MEANT)
    settings.skip(("fp4_recipe", "grad_reduce_in_fp32", "fp8_param_gather", "params_dtype"), prefix)
    if bf16 and fp16:
        raise settings.against(f"{prefix}bf16", f"{prefix}fp16", "one of the two")
    if fp8 and fp4:
        raise settings.against(f"{prefix}fp8 = {fp8}", f"{prefix}fp4 = {fp4}", "one of the two")
    name = first_set("", fp8=fp8, nvfp4=fp4, bf16=bf16, fp16=fp16, fp32=fp32)
    return recipe or name if fp8 else name or None


def _read_saving(settings: ConfigKeys) -> int | None:
    """Steps between checkpoints; a folder of null writes none."""
    off = "checkpoint.save" in settings and settings.text("checkpoint.save") is None
    interval = settings.size("checkpoint.save_interval", least=0)
    settings.text("checkpoint.ckpt_format")
    return None if off or not interval else interval
