"""Megatron-LM's arguments in: of an argument file, or of the script that launches it.

Megatron-DeepSpeed's scripts and flags of older releases are read too. A flag whose value the script
does not settle is read as left out, with a note; one that appears twice is taken as argparse does,
the last time.
"""

from __future__ import annotations

import re
from typing import Any

from computeflow.files.limits import PIPELINE_PARTS
from computeflow.planning.exports.config_formats import ConfigReading
from computeflow.planning.exports.frameworks.config_keys import (
    ConfigKeys,
    bounded,
    first_set,
    read_optimizer,
    reading,
    run_tokens,
    stated,
)
from computeflow.planning.exports.frameworks.megatron.layout import (
    FP8_MEANT,
    STRATEGY_MEANT,
    WAY_MEANT,
    sharding_of,
)
from computeflow.planning.exports.frameworks.megatron.shape import read_shape
from computeflow.planning.exports.frameworks.shell.script import read_launch, slurm
from computeflow.planning.timeouts import script_timeouts

SIZES = {
    "tp": "tensor-model-parallel-size",
    "pp": "pipeline-model-parallel-size",
    "cp": "context-parallel-size",
    "ep": "expert-model-parallel-size",
    "micro_batch": "micro-batch-size",
}
_FLAG = re.compile(r"^--([a-zA-Z0-9][a-zA-Z0-9_-]*):?(?:=(.*))?$")
_OPEN = re.compile(r"^\$\{?([A-Za-z_]\w*)(?:\[[@*]\])?\}?$")
_REPEAT = re.compile(r"\(([^()]*)\)\*(\d{1,4})|([A-Za-z|])\*(\d{1,4})")
_CHUNKS = "num-virtual-stages-per-pipeline-rank"
_CHUNK_LAYERS = "num-layers-per-virtual-pipeline-stage"
_PARTS = "pipeline-model-parallel-layout"
_LAUNCHER = (
    "node-rank", "master-addr", "master-port", "rdzv-id", "rdzv-backend", "rdzv-endpoint",
    "max-restarts", "tee", "log-dir", "redirects", "hostfile", "jobid", "job-name", "partition",
    "account", "time", "wait", "kill-on-bad-exit", "mpi", "output", "error", "container-image",
    "container-mounts", "container-workdir", "export",
)  # fmt: skip
_OTHERS = (
    "lr", "min-lr", "weight-decay", "adam-", "clip-grad", "init-method-std", "seed", "split", "data-",
    "train-data-path", "valid-data-path", "test-data-path", "vocab-file", "merge-file", "tokenizer-",
    "num-workers", "log-", "tensorboard-", "wandb-", "eval-", "exit-", "no-load-", "no-save-",
    "norm-epsilon", "rotary-", "attention-dropout", "hidden-dropout", "distributed-backend",
    "distributed-timeout", "loss-scale", "initial-loss-scale",
)  # fmt: skip
"""Beginnings of flags of learning, data and logging."""
_OLDER = ("checkpoint-activations", "activations-checkpoint-method", "DDP-impl")
_CAPABILITIES = {"dp_overlap": "overlap-grad-reduce", "sequence_parallel": "sequence-parallel"}
"""Fields of a stack, and the flags that switch them."""
_KNOWN = ("overlap-param-gather", "use-precision-aware-optimizer", "moe-token-dispatcher-type", "save",
          "load", "ckpt-format", "use-mcore-models", "DDP-impl", "deepspeed", "deepspeed-config",
          "deepspeed-activation-checkpointing", "optimizer-offload-fraction")  # fmt: skip
"""Known, and of no matter to a layout."""
_SWITCHES = frozenset(
    "bf16 fp16 swiglu disable-bias-linear untie-embeddings-and-output-weights group-query-attention "
    "moe-router-enable-expert-bias qk-layernorm add-qkv-bias multi-latent-attention "
    "sequence-parallel overlap-grad-reduce overlap-param-gather use-distributed-optimizer "
    "use-megatron-fsdp use-custom-fsdp use-torch-fsdp2 optimizer-cpu-offload cpu-optimizer "
    "use-precision-aware-optimizer recompute-activations checkpoint-activations use-mcore-models "
    "deepspeed deepspeed-activation-checkpointing use-rotary-position-embeddings embed-layernorm "
    "no-position-embedding account-for-embedding-in-pipeline-split "
    "account-for-loss-in-pipeline-split".split()
)


def read_script(text: str, where: str, name: str) -> ConfigReading:
    notes: list[str] = []
    words, variables = read_launch(bounded(text, where), where)
    script = _Script(words)
    settings = ConfigKeys(script.flags, where)
    settings.timeouts = {**script_timeouts(text, variables), **settings.timeouts}
    settings.skip(_LAUNCHER)
    model = read_shape(settings, notes)
    layers = script.flags.get("num-layers")
    switches = {key: settings.flag(flag) for key, flag in _CAPABILITIES.items()}
    layout = _layout(settings, layers if isinstance(layers, int) else None, notes)
    precision = _precision(settings)
    layout |= _sharding(settings, precision, notes)
    script.leave_open(layout)
    job = stated(
        model=model,
        global_batch=settings.size("global-batch-size"),
        seq_len=settings.size("seq-length"),
        precision=None if precision == "fp32" and script.open_words else precision,
        optimizer=read_optimizer(settings, "optimizer", {"adam": "adamw", "muon": "muon"}, notes),
        checkpoint_steps=settings.size("save-interval"),
    )
    job |= _tokens(settings, job)
    _gpus(settings, layout, slurm(text), notes)
    notes += script.notes(settings)
    settings.forget(_OTHERS)
    stack = _stack(script.flags)
    capabilities = {} if script.open_words or stack != "megatron" else _switched(switches, layout)
    return reading(name, settings, job, layout, notes, stack=stack, capabilities=capabilities)


def _switched(switches: dict[str, bool | None], layout: dict[str, Any]) -> dict[str, Any]:
    """What a launch of today's Megatron-LM switches; norms are split with tensors only."""
    tensors = layout.get("tp", 1) > 1
    return {key: bool(on) for key, on in switches.items() if key != "sequence_parallel" or tensors}


def _tokens(settings: ConfigKeys, job: dict[str, Any]) -> dict[str, float]:
    samples, steps = settings.raw("train-samples"), settings.size("train-iters")
    if not isinstance(samples, int):
        return run_tokens(job, steps)
    return {"tokens": float(samples * job["seq_len"])} if samples > 0 and "seq_len" in job else {}


def _stack(flags: dict[str, Any]) -> str:
    """Scripts outlive releases: DeepSpeed's flags and those that went in 2022 tell an older one."""
    if "zero-stage" in flags or "deepspeed" in flags:
        return "megatron-deepspeed"
    return "megatron-2021" if any(key in flags for key in _OLDER) else "megatron"


class _Script:
    """Flags by name, True for one without a value; and what the script leaves open."""

    def __init__(self, words: list[str]) -> None:
        self.flags: dict[str, Any] = {}
        self.open_words: list[str] = []
        self.open_flags: dict[str, str] = {}
        self._twice: dict[str, tuple[Any, Any]] = {}
        for key, value in self._pairs(words):
            if isinstance(value, str) and "$" in value:
                self.open_flags[key] = value
                self.flags.pop(key, None)
                continue
            before = self.flags.get(key, value)
            if before != value:
                self._twice[key] = (before, value)
            self.open_flags.pop(key, None)
            self.flags[key] = value

    def leave_open(self, layout: dict[str, Any]) -> None:
        """Drop sizes and choices that the script does not settle: they are not stated."""
        for name, key in SIZES.items():
            if key in self.open_flags:
                del layout[name]
        if self.open_words:
            for name, plain in (("sharding", "ddp"), ("recompute", "none"), ("offload", "none")):
                if layout[name] == plain:
                    del layout[name]

    def notes(self, settings: ConfigKeys) -> list[str]:
        """Notes on flags that were looked up; the rest is kept as unknown."""
        notes, left_open = [], []
        for key, value in self.open_flags.items():
            if key in settings.looked_up:
                left_open.append(f"--{key} {value[:50]}")
            else:
                settings.keep([key])
        left_open = [line for line in left_open if line.split()[0][2:] not in (*_LAUNCHER, *_KNOWN)]
        left_open += dict.fromkeys(self.open_words)
        if left_open:
            notes.append(f"not settled by the file, read as left out: {', '.join(left_open)}")
        for key, (before, last) in self._twice.items():
            if key in settings.looked_up:
                notes.append(f"--{key} {before} and --{key} {last}: the last holds")
        return notes

    def _pairs(self, words: list[str]) -> list[tuple[str, Any]]:
        pairs: list[tuple[str, Any]] = []
        open_flag = False
        for word in words:
            if match := _FLAG.match(word):
                name = match[1].replace("_", "-")
                pairs.append((name, True if match[2] is None else _value(match[2])))
                open_flag = match[2] is None and name not in _SWITCHES
            elif open_flag:
                pairs[-1] = (pairs[-1][0], _value(word))
                open_flag = False
            elif pairs and _OPEN.match(word):
                self.open_words.append(word)
        return pairs


def _value(word: str) -> int | str:
    return int(word) if re.fullmatch(r"-?\d[\d_]{0,17}", word) else word


def _layout(settings: ConfigKeys, layers: int | None, notes: list[str]) -> dict[str, Any]:
    layout: dict[str, Any] = {name: settings.size(key) or 1 for name, key in SIZES.items()}
    etp = settings.size("expert-tensor-parallel-size")
    layout["etp"] = etp or (layout["tp"] if layout["ep"] > 1 else 1)
    layout["vp"] = _chunks(settings, layout["pp"], layers, notes)
    layout["recompute"] = _recompute(settings, notes)
    layout["context"] = settings.choice("cp-comm-type", WAY_MEANT) or "ring"
    on_host = settings.flag("optimizer-cpu-offload") or settings.flag("cpu-optimizer")
    offloaded = settings.size("cpu-offloading-num-layers", least=0)
    layout["offload"] = first_set("none", optimizer=on_host, activations=offloaded)
    settings.skip(_KNOWN)
    return layout


def _recompute(settings: ConfigKeys, notes: list[str]) -> str:
    granularity = settings.choice(
        "recompute-granularity", {"selective": "selective", "full": "full"}
    )
    some = settings.flag("recompute-activations")
    older = settings.flag("checkpoint-activations") or settings.raw("activations-checkpoint-method")
    method, layers = (
        settings.text("recompute-method"),
        settings.size("recompute-num-layers", least=0),
    )
    modules = settings.raw("recompute-modules")
    if granularity == "selective" and modules in ("mlp", "moe"):
        notes.append(
            f"--recompute-modules {modules}: what is dropped besides attention is not counted"
        )
    if granularity == "full" and method == "block":
        notes.append(
            f"--recompute-method block: full of all layers is taken, not of {layers} a stage"
        )
    return granularity or ("full" if older else "selective" if some else "none")


def _gpus(
    settings: ConfigKeys, layout: dict[str, Any], script: dict[str, int], notes: list[str]
) -> None:
    """Into `layout`: the launcher's nodes and their GPUs, unless the model does not go on them."""
    nodes = [settings.raw(key) for key in ("nnodes", "num-nodes", "nodes")]
    devices = [
        settings.raw(key)
        for key in ("nproc-per-node", "num-gpus", "gpus-per-node", "ntasks-per-node")
    ]
    per_job = _first_count([*nodes, script.get("nodes")])
    per_node = _first_count([*devices, script.get("devices"), script.get("tasks")])
    if per_job is None or per_node is None:
        return
    tp, pp, cp, ep, etp = (layout.get(name, 1) for name in ("tp", "pp", "cp", "ep", "etp"))
    needed = pp * max(tp * cp, ep * etp)
    if per_job * per_node < needed:
        less = f"less than the {needed} of one copy of the model: left open"
        notes.append(f"{per_job} x {per_node} GPUs, {less}")
    else:
        layout["gpus"] = per_job * per_node


def _first_count(values: list[Any]) -> int | None:
    return next((n for n in values if isinstance(n, int) and n > 0), None)


def _chunks(settings: ConfigKeys, pp: int, layers: int | None, notes: list[str]) -> int:
    """Model chunks of a stage: three flags say it, and at most one of them may be there."""
    given = stated(
        **{key: settings.size(key) for key in (_CHUNKS, _CHUNK_LAYERS)},
        **{_PARTS: settings.text(_PARTS)},
    )
    stages, even = _uneven(settings, pp, layers, notes)
    if len(given) > 1:
        first, second = list(given)[:2]
        raise settings.against(f"--{first}", f"--{second}", "both say how stages are cut")
    if not given or pp == 1:
        return 1
    ((key, value),) = given.items()
    if key == _PARTS:
        return _parts(settings, key, value, pp)
    if key == _CHUNKS:
        return int(value)
    if even is None:
        notes.append(f"--{key} {value}: of layers that the file does not state; vp taken for 1")
        return 1
    if even % (stages * value):
        raise settings.against(f"--{key} {value}", f"{layers} layers, pp = {pp}", "uneven")
    return int(even // (stages * value))


def _uneven(
    settings: ConfigKeys, pp: int, layers: int | None, notes: list[str]
) -> tuple[int, int | None]:
    """Stages that are cut evenly, and the layers they have; the first and last may have others."""
    ends = {
        key: settings.size(key, least=0)
        for key in ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
    }
    extra = sum(
        bool(settings.flag(f"account-for-{what}-in-pipeline-split"))
        for what in ("embedding", "loss")
    )
    given = {key: value for key, value in ends.items() if value is not None}
    if pp == 1 or layers is None:
        return pp, layers
    if given:
        flags = " ".join(f"--{key} {value}" for key, value in given.items())
        notes.append(f"{flags}: predicted with stages as even as they go")
    return max(pp - len(given), 1), layers + extra - sum(given.values())


def _parts(settings: ConfigKeys, key: str, written: str, pp: int) -> int:
    """Chunks of `Et*3|(tt|)*29m|L`: a bar between them, a star for repeating."""
    text, longer = "", written
    while "*" in longer and longer != text and len(longer) <= PIPELINE_PARTS:
        text = longer
        longer = _REPEAT.sub(lambda m: (m[1] or m[3] or "") * int(m[2] or m[4]), text)
    text = longer
    if "*" in text or len(text) > PIPELINE_PARTS:
        raise settings.wrong(key, written, "letters, bars and *N")
    chunks, rest = divmod(text.count("|") + 1, pp)
    if rest:
        raise settings.against(f"--{key} of {chunks * pp + rest} parts", f"pp = {pp}", "uneven")
    return chunks


def _sharding(settings: ConfigKeys, precision: str, notes: list[str]) -> dict[str, Any]:
    state = settings.flag("use-distributed-optimizer")
    fsdp = [
        settings.flag(f"use-{kind}") for kind in ("megatron-fsdp", "custom-fsdp", "torch-fsdp2")
    ]
    keys = ("num-distributed-optimizer-instances", "data-parallel-sharding-strategy")
    strategy = settings.choice(keys[1], STRATEGY_MEANT)
    replicas = settings.size(keys[0]) or 1
    stage = settings.size("zero-stage", least=0)
    if stage is not None:
        return {"sharding": _stage(settings, stage, precision, notes), "replicas": 1}
    if not any(fsdp):
        return {"sharding": "zero1" if state else "ddp", "replicas": 1}
    return sharding_of(strategy, replicas, keys, settings)


def _stage(settings: ConfigKeys, stage: int, precision: str, notes: list[str]) -> str:
    """Sharding under Megatron-DeepSpeed, whose BF16 optimizer shards its state at stage 0 as well."""
    if stage > 3:
        raise settings.wrong("zero-stage", stage, "0 to 3")
    if stage == 0 and precision == "bf16":
        notes.append("--zero-stage 0 --bf16: DeepSpeed's BF16 optimizer shards as zero1 does")
        return "zero1"
    return ("ddp", "zero1", "zero2", "zero3")[stage]


def _precision(settings: ConfigKeys) -> str:
    bf16, fp16 = settings.flag("bf16"), settings.flag("fp16")
    fp8, fp4 = settings.text("fp8-format"), settings.text("fp4-format")
    settings.text("fp4-recipe")
    recipe = settings.choice("fp8-recipe", FP8_MEANT)
    if bf16 and fp16:
        raise settings.against("--bf16", "--fp16", "one of the two")
    if fp8 and fp4:
        raise settings.against(f"--fp8-format {fp8}", f"--fp4-format {fp4}", "one of the two")
    if fp8:
        return recipe or "fp8"
    return first_set("fp32", nvfp4=fp4, bf16=bf16, fp16=fp16)
