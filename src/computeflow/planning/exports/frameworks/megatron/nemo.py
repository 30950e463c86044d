"""NeMo 2: values over a recipe, one `key=value` a line, for `nemo llm pretrain --factory RECIPE`.

The recipe's name is on a line of its own. A command line of the same words is read too, as far
as its values are plain. NeMo 2's recipes continue in Megatron-Bridge.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from computeflow.files.languages import comment
from computeflow.planning.exports.config_formats import ConfigReading, Setup, WrittenConfig
from computeflow.planning.exports.frameworks.config_keys import (
    Choices,
    ConfigKeys,
    bounded,
    contradiction,
    header,
    not_expressed,
    reading,
    run_tokens,
    stated,
)
from computeflow.planning.exports.frameworks.megatron.fields import (
    RECIPES,
    Places,
    agreed,
    read_fields,
    write_fields,
)
from computeflow.planning.exports.frameworks.megatron.layout import (
    FP8_MEANT,
    FP8_RECIPES,
    OFFLOADS,
    SHARDINGS,
    refuse,
)

_PLACES = Places(
    parallel="trainer.strategy.",
    model="model.config.",
    ddp="trainer.strategy.ddp.",
    optimizer="optim.config.",
    fsdp="trainer.strategy.fsdp",
    fsdp_on="megatron",
    fsdp_off=None,
    instances="trainer.strategy.num_distributed_optimizer_instances",
)
_RECIPES = RECIPES | {
    "llama-4-scout": "llama4_e16",
    "llama-4-maverick": "llama4_e128",
    "mistral-7b": "mistral_7b",
    "mixtral-8x7b": "mixtral_8x7b",
    "mixtral-8x22b": "mixtral_8x22b",
    "gpt3-175b": "gpt3_175b",
    "gemma-2b": "gemma_2b",
    "gemma-7b": "gemma_7b",
    "nemotron-4-15b": "nemotron4_15b",
    "nemotron-4-340b": "nemotron4_340b",
}
_NAMES = {recipe: name for name, recipe in _RECIPES.items()}
_MIXED = {"bf16-mixed": "bf16", "bf16": "bf16", "16-mixed": "fp16", "32": "fp32"}
_PAIR = re.compile(r"([a-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)
_LINE = re.compile(r"(?:^|\s)(?:trainer|data|optim|log|model)(?:\.\w+)+=", re.MULTILINE)
_FACTORY = re.compile(r"(?:^|\s)--factory[= ]+[\"']?(\w+)(\([^)]*\))?")
_KNOWN = ("trainer.val_check_interval", "trainer.log_every_n_steps", "trainer.accelerator",
          "log.ckpt.train_time_interval", "log.log_dir", "log.name", "trainer.limit_val_batches",
          "trainer.plugins.grad_reduce_in_fp32", "trainer.plugins.fp8_param_gather")  # fmt: skip
"""Known, and of no matter to a layout."""


class Nemo:
    name = "nemo"
    version = "2.4.0 (Megatron Core 0.13)"
    expresses = frozenset(
        "gpus tp pp vp cp ep etp micro_batch recompute sharding replicas offload context "
        "model global_batch seq_len precision optimizer checkpoint_steps".split()
    )
    choices: ClassVar[Choices] = {
        "sharding": SHARDINGS,
        "offload": OFFLOADS,
        "precision": ("bf16", *FP8_RECIPES),
        "optimizer": ("adamw",),
        "model": tuple(_RECIPES),
    }
    capabilities: ClassVar[Choices] = {}

    def write(self, setup: Setup) -> WrittenConfig:
        refuse(setup, "NeMo")
        if setup.nodes * setup.node_devices != setup.layout.gpus:
            nodes = f"{setup.nodes} nodes x {setup.node_devices}"
            raise contradiction("NeMo", f"{setup.layout.gpus} GPUs", nodes, "nodes are alike")
        left_out = not_expressed(setup, self)
        title = f"NeMo {self.version} recipe values, written by ComputeFlow."
        recipe = _RECIPES.get(setup.job.model.name)
        start = "nemo llm pretrain --yes $(grep -v '^#' nemo.args), on every rank"
        lines = [] if recipe is None else [f"--factory {recipe}"]
        lines += [f"{key}={value}" for key, value in _values(setup).items()]
        text = comment([*header(title, setup, left_out), start]) + "\n".join(lines) + "\n"
        return WrittenConfig(files={"nemo.args": text}, left_out=tuple(left_out))

    def recognises(self, text: str, file_name: str) -> bool:
        return bool(_LINE.search(text)) or "nemo llm pretrain" in text

    def read(self, text: str, where: str) -> ConfigReading:
        notes: list[str] = []
        plain = "\n".join(
            line for line in bounded(text, where).splitlines() if not line.lstrip().startswith("#")
        )
        settings = ConfigKeys(_pairs(plain, where, notes), where)
        settings.skip(_KNOWN)
        layout = read_fields(settings, _PLACES, notes)
        layout |= stated(
            micro_batch=settings.size("data.micro_batch_size"), gpus=_read_gpus(settings)
        )
        job = stated(
            model=_read_recipe(plain, notes),
            global_batch=settings.size("data.global_batch_size"),
            seq_len=agreed(settings, "data.seq_length", "model.config.seq_length"),
            precision=_read_precision(settings),
            optimizer=settings.choice("optim.config.optimizer", {"adam": "adamw"}),
            checkpoint_steps=settings.size("log.ckpt.every_n_train_steps"),
        )
        job |= run_tokens(job, settings.size("trainer.max_steps", least=-1))
        return reading(self.name, settings, job, layout, notes, stack="nemo")


def _values(setup: Setup) -> dict[str, Any]:
    job, layout = setup.job, setup.layout
    recipe = FP8_RECIPES.get(job.precision)
    values: dict[str, Any] = {
        "trainer.num_nodes": setup.nodes,
        "trainer.devices": setup.node_devices,
        "data.seq_length": job.seq_len,
        "data.micro_batch_size": layout.micro_batch,
        "data.global_batch_size": job.global_batch,
        "model.config.seq_length": job.seq_len,
        **write_fields(setup, _PLACES),
        "optim.config.optimizer": "adam",
        "trainer.plugins.precision": "bf16-mixed",
        "trainer.plugins.fp8": None if recipe is None else "hybrid",
    }
    if recipe is not None:
        values["trainer.plugins.fp8_recipe"] = recipe
    if setup.steps is not None:
        values["trainer.max_steps"] = setup.steps
    if job.checkpoint_steps is not None:
        values["log.ckpt.every_n_train_steps"] = job.checkpoint_steps
        values["log.ckpt.train_time_interval"] = None  # the two exclude each other
    return values


def _pairs(text: str, where: str, notes: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for word in text.split():
        match = _PAIR.fullmatch(word.strip("\"'"))
        if match is None:
            continue
        key, value = match[1], _value(match[2])
        if isinstance(value, str) and "$" in value:
            notes.append(f"{key}={value}: set outside of the file")
        elif key in values and values[key] != value:
            raise ConfigKeys({}, where).against(
                f"{key}={values[key]}", f"{key}={value}", "one key, two values"
            )
        else:
            values[key] = value
    return values


def _value(word: str) -> Any:
    word = word.strip("\"'")
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if word.lower() in ("none", "null"):
        return None
    return int(word) if re.fullmatch(r"-?\d{1,18}", word) else word


def _read_recipe(text: str, notes: list[str]) -> str | None:
    match = _FACTORY.search(text)
    if match is None:
        return None
    if match[2]:
        notes.append(f"--factory {match[1]}{match[2][:100]}: its arguments are not followed")
    return _NAMES.get(match[1], match[1])


def _read_gpus(settings: ConfigKeys) -> int | None:
    nodes, devices = settings.size("trainer.num_nodes"), settings.size("trainer.devices")
    return nodes * devices if nodes is not None and devices is not None else None


def _read_precision(settings: ConfigKeys) -> str | None:
    mixed = settings.raw("trainer.plugins.precision")
    fp8 = settings.text("trainer.plugins.fp8")
    recipe = settings.choice("trainer.plugins.fp8_recipe", FP8_MEANT)
    if mixed is not None and str(mixed) not in _MIXED:
        raise settings.wrong("trainer.plugins.precision", mixed, f"one of {', '.join(_MIXED)}")
    if fp8 is not None:
        return recipe or "fp8"
    return None if mixed is None else _MIXED[str(mixed)]
