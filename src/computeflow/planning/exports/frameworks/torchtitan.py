"""torchtitan's job config: one TOML file. 0.2.2 is the last release that reads one.

Later releases take most of these names as command-line options, over a configuration in Python.
"""

from __future__ import annotations

from typing import Any, ClassVar

from computeflow.files.languages import comment, to_toml
from computeflow.files.parsing import parse_toml
from computeflow.planning.exports.config_formats import ConfigReading, Setup, WrittenConfig
from computeflow.planning.exports.frameworks.config_keys import (
    Choices,
    ConfigKeys,
    bounded,
    contradiction,
    cut_sizes,
    header,
    not_expressed,
    reading,
    run_tokens,
    stated,
)

_FLAVORS = {
    "llama-3.1-8b": ("llama3", "8B"), "llama-3.1-70b": ("llama3", "70B"),
    "llama-3.1-405b": ("llama3", "405B"), "llama-4-scout": ("llama4", "17bx16e"),
    "llama-4-maverick": ("llama4", "17bx128e"), "deepseek-v2-lite": ("deepseek_v3", "16B"),
    "deepseek-v2": ("deepseek_v3", "236B"), "deepseek-v3": ("deepseek_v3", "671B"),
    "qwen3-0.6b": ("qwen3", "0.6B"), "qwen3-1.7b": ("qwen3", "1.7B"), "qwen3-4b": ("qwen3", "4B"),
    "qwen3-8b": ("qwen3", "8B"), "qwen3-14b": ("qwen3", "14B"), "qwen3-32b": ("qwen3", "32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"), "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
    "gpt-oss-20b": ("gpt_oss", "20b"), "gpt-oss-120b": ("gpt_oss", "120b"),
}  # fmt: skip
_NAMES = {flavor: name for name, flavor in _FLAVORS.items()}
_SCHEDULES = {
    "1f1b": "1F1B",
    "zero-bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipe": "DualPipeV",
}
_MEANT = {name: ours for ours, name in _SCHEDULES.items()} | {"Interleaved1F1B": "1f1b"}
_RESHARD = {"zero2": "never", "zero3": "always", "fsdp": "default", "hsdp": "default"}
_SHARDINGS = ("ddp", "zero2", "fsdp", "hsdp")
"""FSDP2 gathers a block at once, whenever it drops it again: fsdp, not zero3."""
_FLOAT8 = {"fp8": "tensorwise", "fp8-rowwise": "rowwise"}
_NO_PIPELINE = ("qwen3", "gpt_oss")
_NO_CONTEXT = ("deepseek_v3", "gpt_oss")
"""Families without a pipelining function, and those whose attention (flex) takes no ring."""
_OTHERS = (
    "job.", "profiling.", "metrics.", "validation.", "comm.", "lr_scheduler.", "optimizer.",
    "training.dataset", "training.max_norm", "training.seed", "checkpoint.", "model.hf_assets_path",
    "model.tokenizer_path", "compile.backend",
)  # fmt: skip
"""Beginnings of keys of learning, data and logging."""
OLDER_KEYS = {
    "training.local_batch_size": "training.batch_size",
    "compile.enable": "training.compile",
    "compile.components": None,
    "checkpoint.enable": "checkpoint.enable_checkpoint",
    "model.converters": None,
}
"""Keys of today to those of releases before 0.2; None where our value has no key there."""
_FLOAT8_NAMES = {"float8", "quantize.linear.float8"}
_MX_NAMES = {"mx", "quantize.linear.mx"}


class Torchtitan:
    name = "torchtitan"
    version = "0.2.2"
    expresses = frozenset(
        "gpus tp pp vp cp ep etp micro_batch recompute sharding replicas schedule offload "
        "model global_batch seq_len precision optimizer checkpoint_steps".split()
    )
    choices: ClassVar[Choices] = {
        "sharding": _SHARDINGS,
        "offload": ("none", "parameters"),
        "precision": ("fp32", "bf16", *_FLOAT8, "mxfp8"),
        "optimizer": ("adamw",),
        "model": tuple(_FLAVORS),
    }
    capabilities: ClassVar[Choices] = {"kernels": ("eager", "compiled")}

    def write(self, setup: Setup) -> WrittenConfig:
        _refuse(setup)
        left_out = [*not_expressed(setup, self), *_not_expressed_values(setup)]
        title = f"torchtitan {self.version} job config, written by ComputeFlow."
        opening = comment(header(title, setup, left_out))
        text = f"{opening}\n{to_toml(_sections(setup))}"
        return WrittenConfig(files={"torchtitan.toml": text}, left_out=tuple(left_out))

    def recognises(self, text: str, file_name: str) -> bool:
        return not text.lstrip().startswith("{") and (
            "_parallel_degree" in text or ("[training]" in text and "local_batch_size" in text)
        )

    def read(self, text: str, where: str) -> ConfigReading:
        settings = ConfigKeys(parse_toml(bounded(text, where), where), where)
        notes: list[str] = []
        job = _job(settings)
        layout = _sizes(settings) | _choices(settings)
        layout |= _pipeline(settings, layout["pp"], notes)
        dp = layout.pop("dp")
        if dp is None:
            notes.append("data_parallel_shard_degree = -1: the GPUs that are there")
        else:
            layout["gpus"] = dp * layout["tp"] * layout["pp"] * layout["cp"]
        accumulation = _batches(settings, job, layout, dp, notes)
        capabilities = _compiled(settings, notes)
        settings.forget(_OTHERS)
        return reading(
            self.name,
            settings,
            job,
            layout,
            notes,
            stack="torchtitan",
            accumulation=accumulation,
            capabilities=capabilities,
        )


def _refuse(setup: Setup) -> None:
    layout = setup.layout
    _refuse_for_model(setup)
    if _replicated(setup) and setup.dp * layout.cp > 1:
        for name, size in cut_sizes(layout).items():
            why = "it replicates whole models only; shard with fsdp or hsdp"
            sharding = f"sharding = {layout.sharding}"
            raise contradiction("torchtitan", sharding, f"{name} = {size}", why)
    if layout.offload == "parameters" and _replicated(setup):
        why = "weights on the host need fsdp or hsdp"
        raise contradiction("torchtitan", "offload = parameters", f"{setup.dp} whole copies", why)
    chunks, layers = layout.pp * layout.vp, setup.job.model.layers
    if chunks > layers:
        why = "a part without a layer is no part"
        raise contradiction("torchtitan", f"pp x vp = {chunks}", f"{layers} layers", why)
    group = setup.dp // layout.replicas * layout.cp * layout.tp
    if group % (layout.ep * layout.etp):
        raise contradiction(
            "torchtitan",
            f"ep x etp = {layout.ep * layout.etp}",
            f"replicas = {layout.replicas}",
            f"experts are spread within a replica of {group} GPUs, and that does not divide it",
        )


def _refuse_for_model(setup: Setup) -> None:
    """Refuse what torchtitan's code for a model does not run."""
    job, layout = setup.job, setup.layout
    family = _FLAVORS.get(job.model.name, ("", ""))[0]
    model = f"model = {job.model.name}"
    if layout.pp > 1 and family in _NO_PIPELINE:
        raise contradiction("torchtitan", f"pp = {layout.pp}", model, "it is not cut into stages")
    if layout.cp > 1 and family in _NO_CONTEXT:
        raise contradiction("torchtitan", f"cp = {layout.cp}", model, "its attention is not split")
    parts = 2 * layout.tp * layout.cp
    if job.seq_len % parts:
        sizes = f"2 x tp x cp = {parts}"
        why = "sequences are cut into that many parts"
        raise contradiction("torchtitan", f"seq_len = {job.seq_len}", sizes, why)


def _replicated(setup: Setup) -> bool:
    layout = setup.layout
    alone = layout.sharding == "hsdp" and setup.dp == layout.replicas and layout.cp == 1
    return layout.sharding == "ddp" or alone


def _not_expressed_values(setup: Setup) -> list[str]:
    lines = []
    layout = setup.layout
    if layout.schedule == "zero-bubble" and layout.pp > 1:
        lines.append("schedule = zero-bubble: torchtitan has it with two chunks a stage only")
    return lines


def _sections(setup: Setup) -> dict[str, dict[str, Any]]:
    job, layout = setup.job, setup.layout
    name, flavor = _FLAVORS.get(job.model.name, (job.model.family, job.model.name))
    local = layout.micro_batch * (setup.accumulation if layout.pp > 1 else 1)
    training: dict[str, Any] = {
        "local_batch_size": local,
        "global_batch_size": job.global_batch,
        "seq_len": job.seq_len,
        "mixed_precision_param": "float32" if job.precision in ("fp32", "tf32") else "bfloat16",
        "enable_cpu_offload": layout.offload == "parameters",
    }
    if setup.steps is not None:
        training["steps"] = setup.steps
    sections: dict[str, dict[str, Any]] = {
        "model": {"name": name, "flavor": flavor},
        "optimizer": {"name": "AdamW"},
        "training": training,
        "parallelism": _parallelism(setup),
        "activation_checkpoint": {"mode": layout.recompute},
        "compile": _compiling(setup),
    }
    if layout.recompute == "selective":
        sections["activation_checkpoint"]["selective_ac_option"] = "op"
    if job.checkpoint_steps is not None:
        sections["checkpoint"] = {"enable": True, "interval": job.checkpoint_steps}
    if job.precision in _FLOAT8:
        sections["model"]["converters"] = ["quantize.linear.float8"]
        sections["quantize"] = _quantized("float8", _FLOAT8[job.precision])
    elif job.precision == "mxfp8":
        sections["model"]["converters"] = ["quantize.linear.mx"]
        sections["quantize"] = _quantized("mx", "mxfp8_cublas")
    return sections


def _compiling(setup: Setup) -> dict[str, Any]:
    if setup.stack.kernels not in ("compiled", "graph"):
        return {"enable": False}
    return {"enable": True, "components": ["model", *["loss"] * setup.stack.compiled_loss]}


def _quantized(kind: str, recipe: str) -> dict[str, Any]:
    return {"linear": {kind: {"recipe_name": recipe}}}


def _parallelism(setup: Setup) -> dict[str, Any]:
    layout = setup.layout
    ddp = _replicated(setup)
    keys: dict[str, Any] = {
        "data_parallel_replicate_degree": setup.dp if ddp else layout.replicas,
        "data_parallel_shard_degree": 1 if ddp else setup.dp // layout.replicas,
        "fsdp_reshard_after_forward": _RESHARD.get(layout.sharding, "never"),
        "tensor_parallel_degree": layout.tp,
        "pipeline_parallel_degree": layout.pp,
        "context_parallel_degree": layout.cp,
        "expert_parallel_degree": layout.ep,
        "expert_tensor_parallel_degree": layout.etp,
    }
    if layout.pp > 1:
        schedule = "Interleaved1F1B" if layout.vp > 1 else _SCHEDULES[layout.schedule]
        keys["pipeline_parallel_schedule"] = schedule
        keys["pipeline_parallel_microbatch_size"] = layout.micro_batch
        if layout.vp > 2:  # two is what a looped schedule takes by itself
            keys["module_fqns_per_model_part"] = _parts(
                setup.job.model.layers, layout.pp * layout.vp
            )
        if layout.schedule == "dualpipe" and layout.ep > 1 and layout.recompute != "none":
            keys["pipeline_parallel_expert_parallel_overlap"] = False
    return keys


def _parts(layers: int, chunks: int) -> list[list[str]]:
    """Names of the modules of each chunk, layers as even as they go."""
    parts, done = [], 0
    for chunk in range(chunks):
        end = layers * (chunk + 1) // chunks
        parts.append([f"layers.{layer}" for layer in range(done, end)])
        done = end
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def _job(settings: ConfigKeys) -> dict[str, Any]:
    name, flavor = settings.text("model.name"), settings.text("model.flavor")
    model = None
    if name is not None and flavor is not None:
        model = _NAMES.get((name, flavor), f"{name}/{flavor}")
    enabled, older = (
        settings.flag("checkpoint.enable"),
        settings.flag("checkpoint.enable_checkpoint"),
    )
    interval = settings.size("checkpoint.interval")
    return stated(
        model=model,
        seq_len=settings.size("training.seq_len"),
        precision=_precision(settings),
        optimizer=settings.choice("optimizer.name", {"AdamW": "adamw", "Adam": "adamw"}),
        checkpoint_steps=(interval or 500) if enabled or older else None,
    )


def _precision(settings: ConfigKeys) -> str | None:
    listed = settings.raw("model.converters") or []
    converters = set(listed.split(",") if isinstance(listed, str) else map(str, listed))
    recipe = settings.text("quantize.linear.float8.recipe_name")
    settings.text("quantize.linear.mx.recipe_name")
    param = settings.choice(
        "training.mixed_precision_param", {"bfloat16": "bf16", "float32": "fp32"}
    )
    if converters & _FLOAT8_NAMES and converters & _MX_NAMES:
        raise settings.against("converter float8", "converter mx", "one of them makes the operands")
    if converters & _FLOAT8_NAMES:
        return "fp8" if recipe in (None, "tensorwise") else "fp8-rowwise"
    return "mxfp8" if converters & _MX_NAMES else param


def _sizes(settings: ConfigKeys) -> dict[str, Any]:
    degrees = {
        "tp": "tensor_parallel",
        "pp": "pipeline_parallel",
        "cp": "context_parallel",
        "ep": "expert_parallel",
        "etp": "expert_tensor_parallel",
    }
    return {ours: settings.size(f"parallelism.{key}_degree") or 1 for ours, key in degrees.items()}


def _choices(settings: ConfigKeys) -> dict[str, Any]:
    sharding = _sharding(settings)
    offload = settings.flag("training.enable_cpu_offload")
    mode = settings.choice(
        "activation_checkpoint.mode", {m: m for m in ("none", "selective", "full", "memory_budget")}
    )
    settings.text("activation_checkpoint.selective_ac_option")
    recompute = "selective" if mode in (None, "memory_budget") else mode
    return sharding | {"recompute": recompute, "offload": "parameters" if offload else "none"}


def _sharding(settings: ConfigKeys) -> dict[str, Any]:
    key = "parallelism.data_parallel_shard_degree"
    replicas = settings.size("parallelism.data_parallel_replicate_degree") or 1
    shards = settings.size(key, least=-1)
    if shards == 0:
        raise settings.wrong(key, 0, "-1 or a positive number")
    shards = shards or -1
    reshard = settings.choice(
        "parallelism.fsdp_reshard_after_forward",
        {"default": "fsdp", "always": "fsdp", "never": "zero2"},
    )
    if shards == 1 and replicas > 1:
        return {"sharding": "ddp", "replicas": 1, "dp": replicas}
    return {
        "sharding": "hsdp" if replicas > 1 else reshard or "fsdp",
        "replicas": replicas,
        "dp": replicas * shards if shards > 0 else None,
    }


def _compiled(settings: ConfigKeys, notes: list[str]) -> dict[str, Any]:
    """Kernels, and the loss with them; torchtitan compiles where it is told to only."""
    enabled, older = settings.flag("compile.enable"), settings.flag("training.compile")
    parts = settings.items("compile.components")
    if enabled is None and older is None:
        notes.append("compile.enable is not there: torchtitan does not compile then")
    parts = ["model", "loss"] if parts is None else parts  # both are the default
    if not (enabled or older) or "model" not in parts:
        return {"kernels": "eager"}
    return {"kernels": "compiled"} | ({} if "loss" in parts else {"compiled_loss": False})


def _pipeline(settings: ConfigKeys, pp: int, notes: list[str]) -> dict[str, Any]:
    name = settings.text("parallelism.pipeline_parallel_schedule") or "1F1B"
    settings.flag("parallelism.pipeline_parallel_expert_parallel_overlap")
    parts = settings.items("parallelism.module_fqns_per_model_part")
    if pp == 1:
        return {"vp": 1, "schedule": "1f1b"}
    if name not in _MEANT:
        notes.append(f"pipeline_parallel_schedule = {name}: taken for 1F1B")
    schedule = _MEANT.get(name, "1f1b")
    if parts is not None:
        chunks = _chunks(settings, parts, pp)
        return {"vp": chunks if schedule == "1f1b" else 1, "schedule": schedule}
    vp = 2 if name == "Interleaved1F1B" else 1
    if settings.size("parallelism.pipeline_parallel_layers_per_stage") and vp == 2:
        notes.append("pipeline_parallel_layers_per_stage: vp taken for 2")
    return {"vp": vp, "schedule": schedule}


def _chunks(settings: ConfigKeys, parts: list[Any], pp: int) -> int:
    chunks, rest = divmod(len(parts), pp)
    if rest:
        raise settings.against(
            f"{len(parts)} model parts",
            f"pipeline_parallel_degree = {pp}",
            "every stage holds as many parts",
        )
    return chunks


def _batches(
    settings: ConfigKeys,
    job: dict[str, Any],
    layout: dict[str, Any],
    dp: int | None,
    notes: list[str],
) -> int | None:
    """Into `job` and `layout`: with a pipeline, the local batch is all its micro-batches.

    What comes back is the number of those, where the global batch follows from the GPUs.
    """
    local = _local_batch(settings, notes)
    micro = settings.size("parallelism.pipeline_parallel_microbatch_size")
    total = settings.size("training.global_batch_size", least=-1) or 0
    layout["micro_batch"] = local if layout["pp"] == 1 else micro or 1
    if local % layout["micro_batch"]:
        raise settings.against(
            f"local_batch_size = {local}",
            f"pipeline_parallel_microbatch_size = {layout['micro_batch']}",
            "it is not a whole number of micro-batches",
        )
    batch = _global_batch(settings, total, local, dp)
    job |= stated(global_batch=batch)
    job |= run_tokens(job, settings.size("training.steps"))
    return local // layout["micro_batch"] if batch is None else None


def _global_batch(settings: ConfigKeys, total: int, local: int, dp: int | None) -> int | None:
    if dp is None:
        return total if total > 0 else None
    if total > 0 and total % (local * dp):
        raise settings.against(
            f"global_batch_size = {total}",
            f"local_batch_size x dp = {local} x {dp}",
            "it is not a multiple",
        )
    return total if total > 0 else local * dp


def _local_batch(settings: ConfigKeys, notes: list[str]) -> int:
    local, older = (
        settings.size(f"training.{name}") for name in ("local_batch_size", "batch_size")
    )
    size = local or older  # its name until 0.1
    if size is None:
        notes.append("training.local_batch_size is not there: torchtitan's default of 8")
    return size or 8
