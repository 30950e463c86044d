"""DeepSpeed's configuration: one JSON file, with a note on what it cannot hold.

JSON has no comments, so what is left out is in the note beside it. What the training script
decides (the model, recomputation, pipeline stages) is not DeepSpeed's to configure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from computeflow import codec
from computeflow.files.languages import text_line
from computeflow.files.parsing import parse_json
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

_STAGES = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3}
_SHARDINGS = ("ddp", "zero1", "zero2", "zero3")
_OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon"}
_MEANT = {
    "adamw": "adamw",
    "adam": "adamw",
    "fusedadam": "adamw",
    "deepspeedcpuadam": "adamw",
    "onebitadam": "adamw",
    "zerooneadam": "adamw",
    "muon": "muon",
}
_IGNORED = (
    "gradient_clipping steps_per_print wall_clock_breakdown zero_allow_untested_optimizer "
    "zero_optimization.contiguous_gradients "
    "zero_optimization.reduce_scatter zero_optimization.allgather_partitions "
    "zero_optimization.reduce_bucket_size zero_optimization.allgather_bucket_size "
    "zero_optimization.offload_optimizer.pin_memory zero_optimization.offload_param.pin_memory "
    "zero_optimization.offload_optimizer.nvme_path zero_optimization.offload_param.nvme_path "
    "zero_optimization.sub_group_size zero_optimization.round_robin_gradients "
    "zero_optimization.cpu_offload_use_pin_memory zero_optimization.load_from_fp32_weights "
    "zero_optimization.max_live_parameters zero_optimization.max_reuse_distance "
    "zero_optimization.gather_16bit_weights_on_model_save "
    "prescale_gradients gradient_predivide_factor zero_force_ds_cpu_optimizer"
).split()
_IGNORED_IN = ("fp16.", "bf16.", "zero_optimization.stage3_", "activation_checkpointing.")
"""Known keys that do not affect a layout."""
_SIZES = {
    "tp": ("tensor_parallel.autotp_size", 0), "cp": ("sequence_parallel_size", 1),
    "pp": ("pipeline.stages", 1), "ep": ("expert_parallel.autoep_size", 1),
}  # fmt: skip
"""Keys of each, and the least value."""
_APART = (
    ("cp", "tp", "its groups are of data and sequence only"),
    ("cp", "pp", "its groups are of data and sequence only"),
    ("pp", "tp", "AutoTP makes groups of data and tensors only"),
    ("ep", "tp", "AutoEP and AutoTP do not go together"),
)
"""Ways to cut a model that exclude each other."""
_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


class DeepSpeed:
    name = "deepspeed"
    version = "0.19.8"
    expresses = frozenset(
        "gpus tp pp cp ep micro_batch sharding offload context "
        "global_batch precision optimizer".split()
    )
    choices: ClassVar[Choices] = {
        "sharding": _SHARDINGS,
        "precision": ("fp32", "fp16", "bf16"),
        "optimizer": tuple(_OPTIMIZERS),
        "context": ("all-to-all",),
    }
    capabilities: ClassVar[Choices] = {"dp_overlap": (False, True)}

    def write(self, setup: Setup) -> WrittenConfig:
        _refuse(setup)
        left_out = [
            line
            for line in not_expressed(setup, self)
            if setup.layout.cp > 1 or "context" not in line
        ]
        left_out += _not_expressed_batch(setup)
        title = f"DeepSpeed {self.version} configuration in ds_config.json, written by ComputeFlow."
        lines = header(title, setup, left_out)
        lines += [f"Start it with: {command(setup)}", *_by_script(setup)]
        return WrittenConfig(
            files={
                "ds_config.json": codec.to_json(_tree(setup)) + "\n",
                "ds_config.txt": "\n".join(map(text_line, lines)) + "\n",
            },
            left_out=tuple(left_out),
        )

    def recognises(self, text: str, file_name: str) -> bool:
        keys = ("train_micro_batch_size_per_gpu", "train_batch_size", "zero_optimization")
        known = any(f'"{key}"' in text for key in keys)
        return text.lstrip().startswith("{") and known and '"per_device_train' not in text

    def read(self, text: str, where: str) -> ConfigReading:
        tree = parse_json(bounded(text, where), where)
        reading = read_tree(ConfigKeys(tree, where), self.name)
        own = "recomputation is the script's: none is taken"
        return replace(reading, notes=(*reading.notes, own))


def command(setup: Setup) -> str:
    return (
        f"deepspeed --num_nodes {setup.nodes} --num_gpus {setup.node_devices} --hostfile HOSTFILE "
        "TRAIN.py --deepspeed --deepspeed_config ds_config.json"
    )


def _by_script(setup: Setup) -> list[str]:
    layout = setup.layout
    lines = ["Learning rate and schedule are the script's; DeepSpeed's default rate is 1e-3."]
    if layout.pp > 1:
        lines.append(f"The script builds a PipelineModule of num_stages={layout.pp}.")
    if layout.cp > 1:
        lines.append(f"The script splits sequences over {layout.cp} ranks (Ulysses).")
    if layout.offload == "nvme":
        lines.append("nvme_path names a folder on the node's own disk: set it.")
    return lines


def _refuse(setup: Setup) -> None:
    stage, cut = _STAGES[setup.layout.sharding], cut_sizes(setup.layout)
    sharding = f"sharding = {setup.layout.sharding} (stage {stage})"
    _refuse_stage(setup, stage, sharding)
    for first, second, why in _APART:
        if {first, second} <= cut.keys():
            stated, other = f"{first} = {cut[first]}", f"{second} = {cut[second]}"
            raise contradiction("DeepSpeed", stated, other, why)
    if stage == 3 and {"ep", "cp"} <= cut.keys():
        why = "AutoEP at stage 3 goes without sequence parallelism"
        raise contradiction("DeepSpeed", f"ep = {cut['ep']}, {sharding}", f"cp = {cut['cp']}", why)


def _refuse_stage(setup: Setup, stage: int, sharding: str) -> None:
    layout = setup.layout
    if stage >= 2 and layout.pp > 1:
        why = "its pipeline works with stages 0 and 1 only"
        raise contradiction("DeepSpeed", sharding, f"pp = {layout.pp}", why)
    if layout.offload == "optimizer" and stage == 0:
        why = "state moves to the host from stage 1 on"
        raise contradiction("DeepSpeed", sharding, "offload = optimizer", why)
    if setup.job.optimizer == "muon" and stage == 0:
        raise contradiction("DeepSpeed", sharding, "optimizer = muon", "it needs stage 1 to 3")


def _not_expressed_batch(setup: Setup) -> list[str]:
    """AutoTP counts every GPU as a data-parallel rank when it checks the batch, so it is not given."""
    if setup.layout.tp == 1:
        return []
    batch = f"{setup.dp} data-parallel ranks x micro-batch x accumulation"
    return [
        f"global_batch = {setup.job.global_batch}: with AutoTP it follows: {batch}",
        f"gpus = {setup.layout.gpus}: with AutoTP it is the launcher's",
    ]


def _tree(setup: Setup) -> dict[str, Any]:
    job, layout = setup.job, setup.layout
    tree: dict[str, Any] = {"train_batch_size": job.global_batch} if layout.tp == 1 else {}
    tree |= {
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": setup.accumulation,
        "optimizer": {"type": _OPTIMIZERS.get(job.optimizer, "AdamW"), "params": {}},
        "bf16": {"enabled": job.precision not in ("fp32", "tf32", "fp16")},
        "zero_optimization": zero_section(setup),
    }
    if job.precision == "fp16":
        tree["fp16"] = {"enabled": True}
    if layout.tp > 1:
        tree["tensor_parallel"] = {"autotp_size": layout.tp}
    if layout.ep > 1:
        tree["expert_parallel"] = {"enabled": True, "autoep_size": layout.ep}
    if layout.cp > 1:
        # Both, or DeepSpeed makes no groups for them.
        tree |= {"sequence_parallel_size": layout.cp, "data_parallel_size": setup.dp}
    if layout.pp > 1:
        tree["pipeline"] = {"stages": layout.pp}
    if layout.offload == "activations":
        tree["activation_checkpointing"] = {"cpu_checkpointing": True}
    return tree


def zero_section(setup: Setup) -> dict[str, Any]:
    layout = setup.layout
    section: dict[str, Any] = {"stage": _STAGES[layout.sharding]}
    if section["stage"]:
        section["overlap_comm"] = setup.stack.dp_overlap
    device = {"optimizer": "cpu", "parameters": "cpu", "nvme": "nvme"}.get(layout.offload)
    if device is not None:
        target = {"device": device} | ({"nvme_path": "/local_nvme"} if device == "nvme" else {})
        section["offload_optimizer"] = target
        if layout.offload != "optimizer":
            section["offload_param"] = dict(target)
    return section


def read_tree(settings: ConfigKeys, name: str) -> ConfigReading:
    """Read a DeepSpeed tree, also the part of another framework's file that is handed to it."""
    notes = _left_to_script(settings)
    settings.skip(_IGNORED)
    layout: dict[str, Any] = {
        size: settings.size(key, least) or 1 for size, (key, least) in _SIZES.items()
    }
    if settings.flag("expert_parallel.enabled") is False:
        layout["ep"] = 1
    if layout["cp"] > 1:
        layout["context"] = "all-to-all"
    batch = _batches(settings, layout, notes)
    job = stated(
        global_batch=batch,
        precision=_precision(settings),
        optimizer=_optimizer(settings, notes),
    )
    dp = layout.pop("dp", None)
    if dp is not None:
        layout["gpus"] = dp * layout["tp"] * layout["cp"] * layout["pp"]
    layout["sharding"], layout["replicas"] = _sharding(settings, dp)
    if layout["sharding"] == "hsdp":
        notes.append("mics_shard_size: removed from DeepSpeed by 0.19.8; taken for hsdp")
    layout["offload"] = _offload(settings, layout["sharding"])
    capabilities = _overlap(settings, layout["sharding"])
    settings.forget(_IGNORED_IN)
    steps = layout.pop("steps", None)
    return reading(
        name,
        settings,
        job,
        layout,
        notes,
        stack="deepspeed",
        accumulation=None if batch else steps,
        capabilities=capabilities,
    )


def _overlap(settings: ConfigKeys, sharding: str) -> dict[str, Any]:
    """Whether gradients are reduced behind the backward pass; by default at stage 3 only."""
    stated_here = settings.flag("zero_optimization.overlap_comm")
    if sharding == "ddp":
        return {}
    default = sharding in ("zero3", "hsdp")
    return {"dp_overlap": default if stated_here is None else stated_here}


def _left_to_script(settings: ConfigKeys) -> list[str]:
    autos = [key for key in settings.drop("auto") if key in _BATCHES or key.endswith(".enabled")]
    return [f"{key} = auto: left to the script" for key in autos]


def _batches(settings: ConfigKeys, layout: dict[str, Any], notes: list[str]) -> int | None:
    total = settings.size("train_batch_size")
    micro = settings.size("train_micro_batch_size_per_gpu")
    steps = settings.size("gradient_accumulation_steps")
    ranks = settings.size("data_parallel_size")
    if micro is not None:
        layout |= {"micro_batch": micro, "steps": steps or 1}
    if total is None:
        if not any(note.startswith("train_batch_size") for note in notes):
            notes.append("train_batch_size is not there: it follows from the GPUs")
        return None
    dp = _ranks(settings, total, micro, steps)
    if dp is None:
        notes.append("the number of GPUs does not follow from the batch sizes")
        return total
    if ranks not in (None, dp):
        raise settings.against(
            f"data_parallel_size = {ranks}",
            f"train_batch_size / (micro-batch x accumulation) = {dp}",
            "they are the same number",
        )
    layout["dp"] = dp
    return total


def _ranks(settings: ConfigKeys, total: int, micro: int | None, steps: int | None) -> int | None:
    """Data-parallel ranks, where the batch sizes tell."""
    if micro is None:
        return None
    ranks, rest = divmod(total, micro * (steps or 1))
    if rest:
        raise settings.against(
            f"train_batch_size = {total}",
            f"train_micro_batch_size_per_gpu x gradient_accumulation_steps = {micro} x {steps or 1}",
            "their quotient is the number of data-parallel ranks, and no whole number",
        )
    return None if steps is None else ranks


def _precision(settings: ConfigKeys) -> str | None:
    bf16, fp16 = settings.flag("bf16.enabled"), settings.flag("fp16.enabled")
    older = settings.flag("bfloat16.enabled")
    bf16 = older if bf16 is None else bf16
    if bf16 and fp16:
        raise settings.against("bf16.enabled", "fp16.enabled", "one of the two can be true")
    if bf16 is None and fp16 is None:
        return None
    return "bf16" if bf16 else "fp16" if fp16 else "fp32"


def _optimizer(settings: ConfigKeys, notes: list[str]) -> str | None:
    settings.forget(("optimizer.params", "scheduler."))
    return read_optimizer(settings, "optimizer.type", _MEANT, notes)


def _sharding(settings: ConfigKeys, dp: int | None) -> tuple[str, int]:
    stage = settings.size("zero_optimization.stage", least=0) or 0
    if stage > 3:
        raise settings.wrong("zero_optimization.stage", stage, "0 to 3")
    shards = settings.size("zero_optimization.mics_shard_size", least=-1)
    if shards is None or shards < 1:
        return _SHARDINGS[stage], 1
    if stage != 3:
        raise settings.against(
            f"mics_shard_size = {shards}", f"stage = {stage}", "it needs stage 3"
        )
    if dp is not None and dp % shards:
        raise settings.against(
            f"mics_shard_size = {shards}",
            f"{dp} data-parallel ranks",
            "one does not divide the other",
        )
    return "hsdp", dp // shards if dp is not None else 1


def _offload(settings: ConfigKeys, sharding: str) -> str:
    devices = {"cpu": "cpu", "nvme": "nvme", "none": None}
    state = settings.choice("zero_optimization.offload_optimizer.device", devices)
    weights = settings.choice("zero_optimization.offload_param.device", devices)
    if settings.flag("zero_optimization.cpu_offload"):  # its name until 0.4
        state = state or "cpu"
    activations = settings.flag("activation_checkpointing.cpu_checkpointing")
    if weights is not None and sharding in ("ddp", "zero1", "zero2"):
        raise settings.against(
            f"offload_param.device = {weights}", f"stage = {_STAGES[sharding]}", "it needs stage 3"
        )
    disk = "nvme" in (state, weights)
    return first_set(
        "none", nvme=disk, parameters=weights, optimizer=state, activations=activations
    )
