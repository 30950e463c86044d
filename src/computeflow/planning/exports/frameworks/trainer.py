"""Hugging Face's `TrainingArguments`: one JSON file for `HfArgumentParser`, with a note beside it.

The number of GPUs is the launcher's, so that the global batch is stated as its two factors only. Sizes
of model parallelism are no training arguments: `accelerate` is the format for those. Recipes in YAML,
with the model and the sequence length that they add, are read too.
"""

from __future__ import annotations

from typing import Any, ClassVar

from computeflow import codec
from computeflow.files.languages import text_line
from computeflow.files.parsing import parse_json, parse_yaml
from computeflow.planning.exports.config_formats import ConfigReading, Setup, WrittenConfig
from computeflow.planning.exports.frameworks.config_keys import (
    Choices,
    ConfigKeys,
    bounded,
    contradiction,
    cut_sizes,
    first_set,
    header,
    not_expressed,
    read_optimizer,
    reading,
    stated,
)
from computeflow.planning.exports.frameworks.deepspeed import read_tree, zero_section

_OPTIMIZERS = {"adamw": "adamw_torch_fused", "adam8bit": "adamw_bnb_8bit"}
_MEANT = {"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw",
          "paged_adamw_32bit": "adamw", "adamw_bnb_8bit": "adam8bit", "adamw_8bit": "adam8bit",
          "adamw_torch_8bit": "adam8bit", "paged_adamw_8bit": "adam8bit"}  # fmt: skip
_OTHERS = (
    "learning_rate", "lr_scheduler", "warmup_", "weight_decay", "adam_", "max_grad_norm", "seed",
    "num_train_epochs", "per_device_eval", "eval_", "do_", "logging_", "log_level", "report_to",
    "run_name", "hub_", "push_to_hub", "save_", "overwrite_", "resume_from", "dataset", "dataloader_",
    "remove_unused", "preprocessing_", "model_revision", "torch_dtype", "attn_implementation",
    "chat_template", "trust_remote_code", "ddp_", "gradient_checkpointing_kwargs.", "lora_alpha",
    "lora_dropout", "lora_target",
)  # fmt: skip
"""Beginnings of arguments of learning, data and logging."""
_ZERO = ("zero1", "zero2", "zero3")


class HuggingFaceTrainer:
    name = "trainer"
    version = "transformers 5.22.2"
    expresses = frozenset(
        "micro_batch recompute sharding offload precision optimizer checkpoint_steps".split()
    )
    choices: ClassVar[Choices] = {
        "sharding": ("ddp", *_ZERO, "fsdp"),
        "recompute": ("none", "full"),
        "precision": ("fp32", "tf32", "fp16", "bf16"),
        "optimizer": tuple(_OPTIMIZERS),
    }
    capabilities: ClassVar[Choices] = {"kernels": ("eager", "compiled")}

    def write(self, setup: Setup) -> WrittenConfig:
        layout = setup.layout
        for name, size in cut_sizes(layout).items():
            why = "the rest of the GPUs would be given other samples; write it for accelerate"
            raise contradiction("TrainingArguments", f"{name} = {size}", f"dp = {setup.dp}", why)
        left_out = [*not_expressed(setup, self), *_not_expressed_values(setup)]
        title = f"TrainingArguments ({self.version}) in trainer.json, written by ComputeFlow."
        lines = header(title, setup, left_out)
        lines.append(
            f"{layout.gpus} GPUs x {layout.micro_batch} x {setup.accumulation} = "
            f"{setup.job.global_batch} sequences a step: start it on that many."
        )
        tree = _tree(setup)
        return WrittenConfig(
            files={
                "trainer.json": codec.to_json(tree) + "\n",
                "trainer.txt": "\n".join(map(text_line, lines)) + "\n",
            },
            left_out=tuple(left_out),
        )

    def recognises(self, text: str, file_name: str) -> bool:
        if text.lstrip().startswith("{"):
            return '"per_device_train_batch_size"' in text
        return any(line.startswith("per_device_train_batch_size:") for line in text.splitlines())

    def read(self, text: str, where: str) -> ConfigReading:
        tree = _tree_of(text, where)
        inner = tree.pop("deepspeed", None) if isinstance(tree, dict) else None
        settings = ConfigKeys(tree, where)
        notes: list[str] = []
        settings.text("output_dir")
        layout = stated(micro_batch=settings.size("per_device_train_batch_size"))
        steps = settings.size("gradient_accumulation_steps")
        if steps is not None:
            notes.append(
                f"gradient_accumulation_steps = {steps}: the global batch follows from the GPUs"
            )
        layout = _with_engine(settings, layout | _read_fsdp(settings), inner, notes)
        job = stated(
            model=settings.text("model_name_or_path"),
            seq_len=_read_length(settings),
            precision=_read_precision(settings),
            optimizer=read_optimizer(settings, "optim", _MEANT, notes),
            checkpoint_steps=_read_saving(settings),
        )
        job |= _read_adapters(settings)
        if (settings.size("max_steps", least=-1) or 0) > 0:
            notes.append("max_steps: tokens follow from the GPUs")
        settings.forget(_OTHERS)
        return reading(
            self.name,
            settings,
            job,
            layout,
            notes,
            stack="huggingface",
            accumulation=steps or 1,
            capabilities=_read_compiling(settings),
        )


def _tree_of(text: str, where: str) -> Any:
    if text.lstrip().startswith("{"):
        return parse_json(bounded(text, where), where)
    return parse_yaml(bounded(text, where), where)


def _not_expressed_values(setup: Setup) -> list[str]:
    """Offload that FSDP and DDP cannot do."""
    layout = setup.layout
    able = {"ddp": ("none",), "fsdp": ("none", "parameters"), "hsdp": ("none", "parameters")}
    if layout.offload in able.get(layout.sharding, (layout.offload,)):
        return []
    return [f"offload = {layout.offload}: not with sharding = {layout.sharding}"]


def _tree(setup: Setup) -> dict[str, Any]:
    job, layout = setup.job, setup.layout
    tree: dict[str, Any] = {
        "output_dir": "checkpoints",
        "per_device_train_batch_size": layout.micro_batch,
        "gradient_accumulation_steps": setup.accumulation,
        "bf16": job.precision not in ("fp32", "tf32", "fp16"),
        "fp16": job.precision == "fp16",
        "optim": _OPTIMIZERS.get(job.optimizer, _OPTIMIZERS["adamw"]),
        "save_strategy": "no" if job.checkpoint_steps is None else "steps",
    }
    if job.precision in ("fp32", "tf32"):
        tree["tf32"] = job.precision == "tf32"
    if job.checkpoint_steps is not None:
        tree["save_steps"] = job.checkpoint_steps
    if setup.steps is not None:
        tree["max_steps"] = setup.steps
    if setup.stack.kernels == "compiled":
        tree["torch_compile"] = True
    full = layout.recompute == "full"
    if layout.sharding in ("fsdp", "hsdp"):
        tree["fsdp"] = True
        tree["fsdp_config"] = {
            "version": 2,
            "reshard_after_forward": True,
            "activation_checkpointing": full,
            "cpu_offload": layout.offload == "parameters",
        }
    else:
        tree["gradient_checkpointing"] = full
    if layout.sharding in _ZERO:
        tree["deepspeed"] = _deepspeed(setup)
    return tree


def _deepspeed(setup: Setup) -> dict[str, Any]:
    """DeepSpeed's section; `auto` where the trainer fills in its own arguments."""
    tree: dict[str, Any] = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "zero_optimization": zero_section(setup),
    }
    if setup.layout.offload == "activations":
        tree["activation_checkpointing"] = {"cpu_checkpointing": True}
    return tree


def _read_fsdp(settings: ConfigKeys) -> dict[str, Any]:
    words = _read_fsdp_words(settings)
    config = "fsdp_config."
    kept = settings.flag(f"{config}reshard_after_forward") is False
    recompute = settings.flag(f"{config}activation_checkpointing")
    offload = settings.flag(f"{config}cpu_offload") or "offload" in words
    settings.skip(
        ("version", "transformer_layer_cls_to_wrap", "auto_wrap_policy", "state_dict_type"), config
    )
    checkpointing = settings.flag("gradient_checkpointing")
    hybrid = any(word.startswith("hybrid") for word in words)
    partly = kept or "shard_grad_op" in words
    return {
        "sharding": first_set("fsdp", ddp=not words, hsdp=hybrid, zero2=partly),
        "offload": "parameters" if offload and words else "none",
        "recompute": "full" if recompute or checkpointing else "none",
    }


def _read_fsdp_words(settings: ConfigKeys) -> list[str]:
    """How it shards; none where it does not."""
    fsdp = settings.raw("fsdp")
    if isinstance(fsdp, list):
        fsdp = " ".join(map(str, fsdp))
    if isinstance(fsdp, str):
        return fsdp.split()
    if fsdp not in (None, False, True):
        raise settings.wrong("fsdp", fsdp, "true or false")
    return ["full_shard"] if fsdp is True else []


def _with_engine(
    settings: ConfigKeys, layout: dict[str, Any], deepspeed: Any, notes: list[str]
) -> dict[str, Any]:
    """The layout with what DeepSpeed's part of the file says."""
    if isinstance(deepspeed, dict):
        return layout | _read_deepspeed(settings, deepspeed, layout, notes)
    if deepspeed is not None:
        notes.append(f"deepspeed = {deepspeed}: sharding and offload stand there, not here")
        return {n: v for n, v in layout.items() if n not in ("sharding", "offload")}
    if layout["sharding"] == "ddp":
        notes.append("neither fsdp nor deepspeed: ddp is taken, unless the launcher shards")
    return layout


def _read_deepspeed(
    settings: ConfigKeys, inner: dict[str, Any], layout: dict[str, Any], notes: list[str]
) -> dict[str, Any]:
    if layout["sharding"] != "ddp":
        raise settings.against("fsdp", "deepspeed", "one of them shards the model")
    reading = read_tree(ConfigKeys(inner, f"{settings.where}: deepspeed"), "deepspeed")
    keys = ("per_device_train_batch_size", "train_micro_batch_size_per_gpu")
    sizes = (layout.get("micro_batch"), reading.layout.get("micro_batch"))
    settings.agree(keys, sizes, "they are the same number")
    notes += [note for note in reading.notes if "auto" not in note and "GPUs" not in note]
    settings.keep(f"deepspeed.{key}" for key in reading.unknown)
    names = ("sharding", "offload", "replicas", "tp", "cp", "pp", "ep", "context", "gpus")
    plain = {"replicas": 1, "tp": 1, "cp": 1, "pp": 1, "ep": 1}
    return stated(**{n: v for n in names if (v := reading.layout.get(n)) != plain.get(n)})


def _read_precision(settings: ConfigKeys) -> str | None:
    bf16, fp16, tf32 = flags = [settings.flag(key) for key in ("bf16", "fp16", "tf32")]
    if bf16 and fp16:
        raise settings.against("bf16", "fp16", "one of the two can be true")
    if flags == [None, None, None]:
        return None
    return first_set("fp32", bf16=bf16, fp16=fp16, tf32=tf32)


def _read_compiling(settings: ConfigKeys) -> dict[str, Any]:
    """`torch_compile`; naming a backend or a mode switches it on too."""
    flag = settings.flag("torch_compile")
    named = [settings.text(f"torch_compile_{what}") for what in ("backend", "mode")]
    return {"kernels": "compiled" if flag or any(named) else "eager"}


def _read_length(settings: ConfigKeys) -> int | None:
    """Sequence length, by the names that TRL, LLaMA-Factory and transformers' scripts use."""
    names = ("max_seq_length", "max_length", "cutoff_len", "model_max_length", "block_size")
    sizes = [settings.size(name) for name in names]
    return next((size for size in sizes if size is not None), None)


def _read_adapters(settings: ConfigKeys) -> dict[str, Any]:
    """Adapters under TRL (use_peft) and LLaMA-Factory (finetuning_type)."""
    adapts = settings.flag("use_peft") or settings.raw("finetuning_type") == "lora"
    small = settings.flag("load_in_4bit") or settings.raw("quantization_bit") == 4
    ranks = [settings.size(name) for name in ("lora_r", "lora_rank")]
    if not adapts:
        return {}
    rank = next((size for size in ranks if size is not None), None)
    return stated(training="qlora" if small else "lora", lora_rank=rank)


def _read_saving(settings: ConfigKeys) -> int | None:
    strategy = settings.raw("save_strategy")
    by_steps = strategy is None or strategy == "steps"  # YAML reads a bare no as false
    steps = settings.raw("save_steps")
    if steps is None or (isinstance(steps, float) and not steps.is_integer()):
        return None  # a share of the run
    if isinstance(steps, bool) or not isinstance(steps, int | float):
        raise settings.wrong("save_steps", steps, "a number of steps")
    return int(steps) if by_steps and steps >= 1 else None
