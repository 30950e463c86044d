"""Megatron-LM's arguments: one flag a line, for `pretrain_gpt.py $(grep -v '^#' megatron.args)`.

Such a file is read back, and so are the shell scripts that Megatron's users keep: flags are looked for
everywhere, and variables are followed where the script sets them to plain values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from computeflow.planning.exports.frameworks.megatron_shape import Flags, read_shape, shape_flags
from computeflow.planning.exports.frameworks.settings import (
    Settings,
    bounded,
    contradiction,
    header,
    reading,
    stated,
    unsaid,
)
from computeflow.planning.exports.model import Reading, Setup, Written

_SIZES = {
    "tp": "tensor-model-parallel-size", "pp": "pipeline-model-parallel-size",
    "cp": "context-parallel-size", "ep": "expert-model-parallel-size",
    "micro_batch": "micro-batch-size",
}  # fmt: skip
_STRATEGIES = {"zero2": "optim_grads", "fsdp": "optim_grads_params", "zero3": "optim_grads_params",
               "hsdp": "optim_grads_params"}  # fmt: skip
_RECIPES = {"fp8": "tensorwise", "fp8-block": "blockwise", "mxfp8": "mxfp8"}
_FLAG = re.compile(r"^--([a-zA-Z0-9][a-zA-Z0-9_-]*)(?:=(.*))?$")
_SET = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=([^\s()]+|\"[^\"]*\")\s*$")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::-([^}]*))?\}?")
_LAUNCHER = ("node_rank", "master_addr", "master_port", "rdzv_id", "rdzv_backend", "rdzv_endpoint")
_KNOWN = ("recompute-method", "recompute-num-layers", "sequence-parallel", "overlap-grad-reduce",
          "overlap-param-gather", "use-precision-aware-optimizer", "moe-token-dispatcher-type", "save",
          "ckpt-format", "use-mcore-models")  # fmt: skip
"""Known, and of no matter to a layout."""
_SWITCHES = frozenset(
    "bf16 fp16 swiglu disable-bias-linear untie-embeddings-and-output-weights group-query-attention "
    "moe-router-enable-expert-bias qk-layernorm add-qkv-bias multi-latent-attention "
    "sequence-parallel overlap-grad-reduce "
    "overlap-param-gather use-distributed-optimizer use-megatron-fsdp use-torch-fsdp2 "
    "optimizer-cpu-offload use-precision-aware-optimizer recompute-activations use-mcore-models".split()
)


class Megatron:
    name = "megatron"
    version = "core 0.20.0 (d98e8a64)"
    expresses = frozenset(
        "tp pp vp cp ep etp micro_batch recompute sharding replicas offload context "
        "global_batch seq_len precision optimizer checkpoint_steps".split()
    )
    choices: Mapping[str, tuple[Any, ...]] = MappingProxyType(
        {
            "sharding": ("ddp", "zero1", "zero2", "fsdp", "hsdp"),
            "offload": ("none", "optimizer", "activations"),
            "precision": ("fp32", "fp16", "bf16", *_RECIPES, "nvfp4"),
            "optimizer": ("adamw", "muon"),
        }
    )

    def write(self, setup: Setup) -> Written:
        _refuse(setup)
        shape = shape_flags(setup.job.model)
        left_out = unsaid(setup, self)
        if shape is not None:
            left_out = [line for line in left_out if not line.startswith("model = ")]
        title = f"Megatron-LM {self.version} arguments, written by ComputeFlow."
        flags = (shape or {}) | _flags(setup)
        lines = [f"# {line}" for line in header(title, setup, left_out)]
        lines.append(
            "# torchrun ... pretrain_gpt.py $(grep -v '^#' megatron.args) and your data's flags"
        )
        lines += [
            f"--{key}" if value is None else f"--{key} {value}" for key, value in flags.items()
        ]
        return Written(files={"megatron.args": "\n".join(lines) + "\n"}, left_out=tuple(left_out))

    def recognises(self, text: str, file_name: str) -> bool:
        return "--tensor-model-parallel-size" in text or "--micro-batch-size" in text

    def read(self, text: str, where: str) -> Reading:
        notes: list[str] = []
        settings = Settings(_tokens(bounded(text, where), where, notes), where)
        for key in _LAUNCHER:
            settings.raw(key)
        model = read_shape(settings, notes)
        layout = _layout(settings, model.layers if model else None, notes)
        job = stated(
            model=model,
            global_batch=settings.size("global-batch-size"),
            seq_len=settings.size("seq-length"),
            precision=_precision(settings),
            optimizer=settings.choice("optimizer", {"adam": "adamw", "muon": "muon"}),
            checkpoint_steps=settings.size("save-interval"),
        )
        steps = settings.size("train-iters")
        if steps is not None and {"global_batch", "seq_len"} <= job.keys():
            job["tokens"] = float(steps * job["global_batch"] * job["seq_len"])
        return reading(self.name, settings, job, layout, notes, stack="megatron")


def _refuse(setup: Setup) -> None:
    layout = setup.layout
    if layout.offload == "activations":
        for name, value, plain in (("pp", layout.pp, 1), ("recompute", layout.recompute, "none")):
            if value != plain:
                why = (
                    "activations move to the host without a pipeline and without recomputation only"
                )
                raise contradiction(
                    "Megatron-LM", "offload = activations", f"{name} = {value}", why
                )
    if layout.offload == "optimizer" and layout.sharding == "ddp":
        why = "its state on the host needs the distributed optimizer (zero1)"
        raise contradiction("Megatron-LM", "offload = optimizer", "sharding = ddp", why)
    if layout.context == "all-to-all" and layout.cp > 1:
        groups = [b.attention.kv_heads for b in setup.job.model.blocks if b.attention is not None]
        if odd := [g for g in groups if g % (layout.tp * layout.cp)]:
            why = "heads are exchanged whole"
            sizes = f"tp x cp = {layout.tp * layout.cp}"
            raise contradiction("Megatron-LM", sizes, f"{odd[0]} key/value heads", why)


def _flags(setup: Setup) -> Flags:
    job, layout, stack = setup.job, setup.layout, setup.stack
    flags: Flags = {key: getattr(layout, name) for name, key in _SIZES.items()}
    flags |= {"expert-tensor-parallel-size": layout.etp, "global-batch-size": job.global_batch}
    flags |= {"seq-length": job.seq_len, "max-position-embeddings": job.seq_len}
    if layout.vp > 1 and job.model.layers % (layout.pp * layout.vp) == 0:
        flags["num-virtual-stages-per-pipeline-rank"] = layout.vp
    elif job.model.layers % (layout.pp * layout.vp):
        flags["pipeline-model-parallel-layout"] = _stages(job.model.layers, layout.pp * layout.vp)
    if layout.tp > 1 and stack.sequence_parallel:
        flags["sequence-parallel"] = None
    if layout.cp > 1:
        flags["cp-comm-type"] = "a2a" if layout.context == "all-to-all" else "p2p"
    if layout.ep > 1:
        flags["moe-token-dispatcher-type"] = (
            "alltoall" if stack.dispatcher == "alltoall" else "flex"
        )
    flags |= _sharding(setup) | _precision_flags(job.precision) | _memory(setup)
    flags["optimizer"] = "muon" if job.optimizer == "muon" else "adam"
    if job.multi_token:
        flags["mtp-num-layers"] = sum(b.count for b in job.model.prediction_blocks)
    if setup.steps is not None:
        flags["train-iters"] = setup.steps
    if job.checkpoint_steps is not None:
        flags |= {"save": "checkpoints", "save-interval": job.checkpoint_steps}
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


def _stages(layers: int, chunks: int) -> str:
    """Layers of every chunk as even as they go: E embedding, t a layer, L the loss."""
    ends = [layers * chunk // chunks for chunk in range(chunks + 1)]
    parts = ["t" * (end - start) for start, end in pairwise(ends)]
    return "E" + "|".join(parts) + "L"


def _sharding(setup: Setup) -> Flags:
    layout, overlaps = setup.layout, setup.stack.dp_overlap
    flags: Flags = {"overlap-grad-reduce": None} if overlaps else {}
    if layout.sharding == "ddp":
        return flags
    flags["use-distributed-optimizer"] = None
    if overlaps:
        flags["overlap-param-gather"] = None
    if layout.sharding in _STRATEGIES:
        flags["use-megatron-fsdp"] = None
        flags["data-parallel-sharding-strategy"] = _STRATEGIES[layout.sharding]
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
    if precision in _RECIPES:
        flags |= {"fp8-format": "hybrid" if precision == "fp8" else "e4m3"}
        flags["fp8-recipe"] = _RECIPES[precision]
    elif precision == "nvfp4":
        flags |= {"fp4-format": "e2m1", "fp4-recipe": "nvfp4"}
    return flags


def _tokens(text: str, where: str, notes: list[str]) -> dict[str, Any]:
    """Flags of an argument file or a script, by name; True for one without a value."""
    found: dict[str, Any] = {}
    for key, value in _pairs(_words(text)):
        if isinstance(value, str) and "$" in value:
            notes.append(f"--{key} {value}: set outside of the file")
        elif key in found and found[key] != value:
            raise Settings({}, where).against(
                f"--{key} {found[key]}", f"--{key} {value}", "one flag, two values"
            )
        else:
            found[key] = value
    return found


def _words(text: str) -> list[str]:
    variables: dict[str, str] = {}
    words: list[str] = []
    for line in text.splitlines():
        plain = re.sub(r"(^|\s)#.*$", "", line)
        if match := _SET.match(plain):
            variables[match[1]] = _filled(match[2].strip("\"'"), variables)
        else:
            filled = _filled(re.sub(r"[\"'\\]", " ", plain), variables)
            words += [
                w for w in filled.split() if "[@]" not in w and not w.endswith("=(") and w != ")"
            ]
    return words


def _pairs(words: list[str]) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    open_flag = False
    for word in words:
        if match := _FLAG.match(word):
            name = match[1]
            pairs.append((name, True if match[2] is None else _value(match[2])))
            open_flag = match[2] is None and name not in _SWITCHES
        elif open_flag:
            pairs[-1] = (pairs[-1][0], _value(word))
            open_flag = False
    return pairs


def _filled(text: str, variables: dict[str, str]) -> str:
    """With variables in place of their names; a variable's value is plain, so that nothing grows."""

    def value(match: re.Match[str]) -> str:
        found = variables.get(match[1], match[2])
        return match[0] if found is None or "$" in found or len(found) > 200 else found

    return _VARIABLE.sub(value, text)


def _value(word: str) -> int | str:
    return int(word) if re.fullmatch(r"-?\d{1,18}", word) else word


def _layout(settings: Settings, layers: int | None, notes: list[str]) -> dict[str, Any]:
    layout: dict[str, Any] = {name: settings.size(key) or 1 for name, key in _SIZES.items()}
    etp = settings.size("expert-tensor-parallel-size")
    layout["etp"] = etp if etp is not None else layout["tp"] if layout["ep"] > 1 else 1
    layout["vp"] = _chunks(settings, layout["pp"], layers, notes)
    nodes, devices = settings.size("nnodes"), settings.size("nproc_per_node")
    if nodes is not None and devices is not None:
        layout["gpus"] = nodes * devices
    granularity = settings.choice(
        "recompute-granularity", {"selective": "selective", "full": "full"}
    )
    if settings.flag("recompute-activations"):
        granularity = granularity or "selective"
    layout["recompute"] = granularity or "none"
    layout |= _read_sharding(settings)
    ways = {"p2p": "ring", "a2a": "all-to-all", "allgather": "ring", "a2a+p2p": "all-to-all"}
    layout["context"] = settings.choice("cp-comm-type", ways) or "ring"
    on_host = settings.flag("optimizer-cpu-offload")
    offloaded = settings.size("cpu-offloading-num-layers", least=0)
    layout["offload"] = "optimizer" if on_host else "activations" if offloaded else "none"
    for key in _KNOWN:
        settings.raw(key)
    return layout


def _chunks(settings: Settings, pp: int, layers: int | None, notes: list[str]) -> int:
    """Model chunks of a stage: three flags say it, and at most one of them may be there."""
    ways = {
        "num-virtual-stages-per-pipeline-rank": settings.size(
            "num-virtual-stages-per-pipeline-rank"
        ),
        "num-layers-per-virtual-pipeline-stage": settings.size(
            "num-layers-per-virtual-pipeline-stage"
        ),
        "pipeline-model-parallel-layout": settings.text("pipeline-model-parallel-layout"),
    }
    given = {key: value for key, value in ways.items() if value is not None}
    if len(given) > 1:
        first, second = list(given)[:2]
        raise settings.against(f"--{first}", f"--{second}", "both say how stages are cut")
    if not given:
        return 1
    ((key, value),) = given.items()
    if isinstance(value, str):
        if "*" in value:
            notes.append(f"--{key} {value}: vp taken for 1")
            return 1
        value, rest = divmod(value.count("|") + 1, pp)
        if rest:
            raise settings.against(f"--{key} of {value * pp + rest} parts", f"pp = {pp}", "uneven")
        return value
    if key.startswith("num-virtual"):
        return value
    if layers is None or layers % (pp * value):
        raise settings.against(f"--{key} {value}", f"{layers} layers, pp = {pp}", "uneven")
    return layers // (pp * value)


def _read_sharding(settings: Settings) -> dict[str, Any]:
    state = settings.flag("use-distributed-optimizer")
    fsdp = settings.flag("use-megatron-fsdp") or settings.flag("use-torch-fsdp2")
    strategies = {"no_shard": "ddp", "optim": "zero1", "optim_grads": "zero2",
                  "optim_grads_params": "fsdp"}  # fmt: skip
    strategy = settings.choice("data-parallel-sharding-strategy", strategies)
    replicas = settings.size("num-distributed-optimizer-instances") or 1
    if not fsdp:
        return {"sharding": "zero1" if state else "ddp", "replicas": 1}
    sharding = strategy or "fsdp"
    if replicas > 1 and sharding != "fsdp":
        raise settings.against(
            f"num-distributed-optimizer-instances = {replicas}",
            f"data-parallel-sharding-strategy of {sharding}", "copies need all of it sharded",
        )  # fmt: skip
    return {"sharding": "hsdp" if replicas > 1 else sharding, "replicas": replicas}


def _precision(settings: Settings) -> str:
    bf16, fp16 = settings.flag("bf16"), settings.flag("fp16")
    fp8, fp4 = settings.text("fp8-format"), settings.text("fp4-format")
    settings.text("fp4-recipe")
    recipes = {v: k for k, v in _RECIPES.items()} | {"delayed": "fp8"}
    recipe = settings.choice("fp8-recipe", recipes)
    if bf16 and fp16:
        raise settings.against("--bf16", "--fp16", "one of the two")
    if fp8 and fp4:
        raise settings.against(f"--fp8-format {fp8}", f"--fp4-format {fp4}", "one of the two")
    if fp8:
        return recipe or "fp8"
    return "nvfp4" if fp4 else "bf16" if bf16 else "fp16" if fp16 else "fp32"
