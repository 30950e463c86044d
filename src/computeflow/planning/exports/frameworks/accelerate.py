"""Accelerate's launch configuration: one YAML file, through FSDP, DeepSpeed, Megatron-LM or plain DDP.

Which of them a plan goes through follows from its sharding and its sizes (`_engine`). Batch sizes,
sequence length and optimizer belong to the training script.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from computeflow.files.languages import comment, to_yaml
from computeflow.files.parsing import parse_yaml
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
    reading,
    stated,
)

_PRECISIONS = {"fp32": "no", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}
_ENGINES = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "MULTI_GPU", "NO")
_STAGES = {"zero1": 1, "zero2": 2, "zero3": 3}
_NUMBERED = {
    1: "FULL_SHARD",
    2: "SHARD_GRAD_OP",
    3: "NO_SHARD",
    4: "HYBRID_SHARD",
    5: "HYBRID_SHARD_ZERO2",
}
"""Strategies by the numbers that early files have."""
_PARALLEL = "parallelism_config.parallelism_config_"
_MEGATRON = "megatron_lm_config.megatron_lm_"
_KNOWN = (
    "compute_environment machine_rank main_training_function rdzv_backend same_network use_cpu debug "
    "main_process_ip main_process_port downcast_bf16 tpu_use_cluster tpu_use_sudo tpu_env "
    "enable_cpu_affinity "
    "fsdp_config.fsdp_auto_wrap_policy fsdp_config.fsdp_state_dict_type fsdp_config.fsdp_version "
    "fsdp_config.fsdp_cpu_ram_efficient_loading fsdp_config.fsdp_use_orig_params "
    "fsdp_config.fsdp_sync_module_states fsdp_config.fsdp_forward_prefetch "
    "fsdp_config.fsdp_backward_prefetch fsdp_config.fsdp_transformer_layer_cls_to_wrap "
    "deepspeed_config.zero3_init_flag deepspeed_config.zero3_save_16bit_model "
    "deepspeed_config.deepspeed_multinode_launcher deepspeed_config.gradient_clipping "
    "deepspeed_config.offload_optimizer_nvme_path deepspeed_config.offload_param_nvme_path"
).split()
"""Known keys that do not affect a layout."""
_SCRIPT = "recomputation is the script's: none is taken"


class Accelerate:
    name = "accelerate"
    version = "1.15.0"
    expresses = frozenset(
        "gpus tp pp cp ep etp recompute sharding replicas offload precision".split()
    )
    choices: ClassVar[Choices] = {
        "sharding": ("ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp"),
        "precision": tuple(_PRECISIONS),
    }
    capabilities: ClassVar[Choices] = {}

    def write(self, setup: Setup) -> WrittenConfig:
        engine = _engine(setup)
        left_out = [*not_expressed(setup, self), *_not_expressed_by(engine, setup)]
        title = f"Accelerate {self.version} configuration, written by ComputeFlow."
        start = "accelerate launch --config_file accelerate.yaml --machine_rank R TRAIN.py"
        text = comment([*header(title, setup, left_out), start]) + to_yaml(_tree(engine, setup))
        return WrittenConfig(files={"accelerate.yaml": text}, left_out=tuple(left_out))

    def recognises(self, text: str, file_name: str) -> bool:
        return any(line.startswith("distributed_type:") for line in text.splitlines())

    def read(self, text: str, where: str) -> ConfigReading:
        settings = ConfigKeys(parse_yaml(bounded(text, where), where), where)
        settings.skip(_KNOWN)
        engine = settings.choice("distributed_type", {name: name for name in _ENGINES}) or "NO"
        notes: list[str] = []
        layout: dict[str, Any] = stated(gpus=settings.size("num_processes"))
        machines = settings.size("num_machines")
        if machines is not None and layout.get("gpus", machines) % machines:
            raise settings.against(
                f"num_processes = {layout['gpus']}", f"num_machines = {machines}", "uneven machines"
            )
        layout |= {
            "FSDP": _read_fsdp,
            "DEEPSPEED": _read_deepspeed,
            "MEGATRON_LM": _read_megatron,
            "MULTI_GPU": _read_ddp,
            "NO": _read_ddp,
        }[engine](settings, notes)
        if layout.get("sharding") == "hsdp" and layout["replicas"] == 1:
            layout["replicas"] = copies = machines or 1
            notes.append(f"hybrid sharding: a copy a machine, {copies} of them")
        meant = {theirs: ours for ours, theirs in _PRECISIONS.items()}
        job = stated(precision=_read_precision(settings, meant))
        _check_fsdp(settings, layout)
        stack = "megatron" if engine == "MEGATRON_LM" else "accelerate"
        return reading(self.name, settings, job, layout, notes, stack=stack)


def _engine(setup: Setup) -> str:
    layout, sharding = setup.layout, f"sharding = {setup.layout.sharding}"
    fsdp = layout.sharding in ("fsdp", "hsdp")
    cut = cut_sizes(layout, ("pp", "ep", "etp") if fsdp else ("tp", "pp", "cp", "ep", "etp"))
    if layout.sharding in ("ddp", "zero1"):
        if cut:
            return "MEGATRON_LM"
        return "MULTI_GPU" if layout.sharding == "ddp" else "DEEPSPEED"
    if fsdp and setup.dp // layout.replicas * layout.cp == 1 < layout.gpus:
        why = "no ranks are left to shard over; use ddp"
        raise contradiction("Accelerate", sharding, f"{layout.gpus} GPUs", why)
    for name, size in cut.items():
        why = "only Megatron-LM cuts so here, and it shards with ddp or zero1"
        raise contradiction("Accelerate", sharding, f"{name} = {size}", why)
    return "FSDP" if fsdp else "DEEPSPEED"


def _not_expressed_by(engine: str, setup: Setup) -> list[str]:
    layout = setup.layout
    recomputes = {"FSDP": ("none", "full"), "MEGATRON_LM": ("full",)}
    offloads = {
        "FSDP": ("none", "parameters"),
        "MEGATRON_LM": ("none", "optimizer"),
        "DEEPSPEED": ("none", "optimizer", "parameters", "nvme"),
    }
    lines = []
    if layout.recompute not in recomputes.get(engine, ("none",)):
        why = "with MEGATRON_LM all is recomputed: Accelerate's own default, which has no word for none"
        if engine != "MEGATRON_LM":
            why = f"with {engine} the script asks for it"
        lines.append(f"recompute = {layout.recompute}: {why}")
    if layout.offload not in offloads.get(engine, ("none",)):
        lines.append(f"offload = {layout.offload}: {engine} has no setting for it")
    return lines


def _tree(engine: str, setup: Setup) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": engine,
        "mixed_precision": _PRECISIONS.get(setup.job.precision, "bf16"),
        "num_processes": setup.layout.gpus,
        "num_machines": setup.nodes,
        "machine_rank": 0,
    }
    if engine == "FSDP":
        tree |= {"fsdp_config": _fsdp(setup), "parallelism_config": _parallelism(setup)}
    elif engine == "DEEPSPEED":
        tree["deepspeed_config"] = _deepspeed(setup)
    elif engine == "MEGATRON_LM":
        tree["megatron_lm_config"] = _megatron(setup)
    return tree


def _fsdp(setup: Setup) -> dict[str, Any]:
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": True,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": setup.layout.offload == "parameters",
        "fsdp_activation_checkpointing": setup.layout.recompute == "full",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


def _parallelism(setup: Setup) -> dict[str, Any]:
    layout = setup.layout
    sizes = {
        "dp_replicate_size": layout.replicas,
        "dp_shard_size": setup.dp // layout.replicas,
        "tp_size": layout.tp,
        "cp_size": layout.cp,
    }
    return {f"parallelism_config_{name}": size for name, size in sizes.items()}


def _deepspeed(setup: Setup) -> dict[str, Any]:
    layout = setup.layout
    device = {"optimizer": "cpu", "parameters": "cpu", "nvme": "nvme"}.get(layout.offload, "none")
    return {
        "zero_stage": _STAGES[layout.sharding],
        "gradient_accumulation_steps": setup.accumulation,
        "offload_optimizer_device": device,
        "offload_param_device": "none" if layout.offload == "optimizer" else device,
        "zero3_init_flag": layout.sharding == "zero3",
    }


def _megatron(setup: Setup) -> dict[str, Any]:
    layout = setup.layout
    keys: dict[str, Any] = {
        "tp_degree": layout.tp,
        "pp_degree": layout.pp,
        "context_parallel_size": layout.cp,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": layout.etp,
        "num_micro_batches": setup.accumulation,
        "sequence_parallelism": layout.tp > 1 and setup.stack.sequence_parallel,
        "use_distributed_optimizer": layout.sharding == "zero1",
        # Accelerate hands these to Megatron-LM even where a file is silent; with its method
        # "uniform" Megatron-LM takes no other granularity.
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    }
    if layout.offload == "optimizer":
        keys |= {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}
    return {f"megatron_lm_{name}": value for name, value in keys.items()}


def _read_fsdp(settings: ConfigKeys, notes: list[str]) -> dict[str, Any]:
    replicas, tp, cp = (
        settings.size(f"{_PARALLEL}{key}_size") or 1 for key in ("dp_replicate", "tp", "cp")
    )
    layout_fields: dict[str, Any] = {
        "tp": tp,
        "pp": 1,
        "ep": 1,
        "etp": 1,
        "cp": cp,
        "shards": settings.size(f"{_PARALLEL}dp_shard_size"),
    }
    reshard = settings.raw("fsdp_config.fsdp_reshard_after_forward")
    strategy = settings.raw("fsdp_config.fsdp_sharding_strategy") or reshard
    strategy = _NUMBERED.get(strategy, strategy) if type(strategy) is int else strategy
    names = {
        "FULL_SHARD": "fsdp",
        "SHARD_GRAD_OP": "zero2",
        "NO_SHARD": "ddp",
        "HYBRID_SHARD": "hsdp",
        "HYBRID_SHARD_ZERO2": "hsdp",
        "None": "fsdp",
        "True": "fsdp",
        "False": "zero2",
    }
    if str(strategy) not in names:
        raise settings.wrong("fsdp_config.fsdp_sharding_strategy", strategy, ", ".join(names))
    sharding = "hsdp" if replicas > 1 else names[str(strategy)]
    offload, recompute = (
        settings.flag("fsdp_config.fsdp_offload_params"),
        settings.flag("fsdp_config.fsdp_activation_checkpointing"),
    )
    return layout_fields | {
        "sharding": sharding,
        "replicas": replicas,
        "recompute": "full" if recompute else "none",
        "offload": "parameters" if offload else "none",
    }


def _check_fsdp(settings: ConfigKeys, layout: dict[str, Any]) -> None:
    """Check that the sizes multiply to the processes, where all are given."""
    shards, gpus = layout.pop("shards", None), layout.get("gpus")
    if shards is None or gpus is None:
        return
    product = shards * layout["replicas"] * layout["tp"] * layout["cp"]
    if product != gpus:
        raise settings.against(
            f"num_processes = {gpus}",
            f"dp_replicate x dp_shard x tp x cp = {layout['replicas']} x {shards} x {layout['tp']} "
            f"x {layout['cp']}",
            "they are the same number",
        )


def _read_deepspeed(settings: ConfigKeys, notes: list[str]) -> dict[str, Any]:
    file = settings.text("deepspeed_config.deepspeed_config_file")
    if file is not None:
        notes.append(f"deepspeed_config_file = {file}: read that file")
        return {}
    stage = settings.size("deepspeed_config.zero_stage", least=0)
    stage = 2 if stage is None else stage
    if stage > 3:
        raise settings.wrong("deepspeed_config.zero_stage", stage, "0 to 3")
    settings.drop("auto")
    if steps := settings.size("deepspeed_config.gradient_accumulation_steps"):
        notes.append(f"{steps} micro-batches a step")
    notes.append(_SCRIPT)
    devices = {"cpu": "cpu", "nvme": "nvme", "none": None}
    state = settings.choice("deepspeed_config.offload_optimizer_device", devices)
    weights = settings.choice("deepspeed_config.offload_param_device", devices)
    if weights and stage != 3:
        raise settings.against(
            f"offload_param_device = {weights}", f"zero_stage = {stage}", "needs 3"
        )
    disk = "nvme" in (state, weights)
    return {
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "ep": 1,
        "etp": 1,
        "replicas": 1,
        "recompute": "none",
        "sharding": ("ddp", *_STAGES)[stage],
        "offload": first_set("none", nvme=disk, parameters=weights, optimizer=state),
    }


def _read_megatron(settings: ConfigKeys, notes: list[str]) -> dict[str, Any]:
    def size(name: str) -> int:
        return settings.size(_MEGATRON + name) or 1

    notes.append(f"{size('num_micro_batches')} micro-batches a step")
    sizes = {
        "tp": size("tp_degree"),
        "pp": size("pp_degree"),
        "cp": size("context_parallel_size"),
        "ep": size("expert_model_parallel_size"),
        "replicas": 1,
    }
    sizes["etp"] = size("expert_tensor_parallel_size")
    granularity = settings.choice(
        f"{_MEGATRON}recompute_granularity", {"full": "full", "selective": "selective"}
    )
    if settings.flag(f"{_MEGATRON}recompute_activations"):
        granularity = granularity or "selective"
    state = settings.flag(f"{_MEGATRON}use_distributed_optimizer")
    on_host = settings.flag(f"{_MEGATRON}optimizer_cpu_offload")
    settings.skip(
        (
            "sequence_parallelism",
            "recompute_method",
            "recompute_num_layers",
            "use_precision_aware_optimizer",
            "gradient_clipping",
        ),
        _MEGATRON,
    )
    return sizes | {
        "sharding": "zero1" if state else "ddp",
        "recompute": granularity or "none",
        "offload": "optimizer" if on_host else "none",
    }


def _read_ddp(settings: ConfigKeys, notes: list[str]) -> dict[str, Any]:
    notes.append(_SCRIPT)
    return {
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "ep": 1,
        "etp": 1,
        "replicas": 1,
        "sharding": "ddp",
        "recompute": "none",
        "offload": "none",
    }


def _read_precision(settings: ConfigKeys, meant: Mapping[str, str]) -> str | None:
    value = settings.raw("mixed_precision")
    value = "no" if value is False else value  # YAML reads a bare no as false
    if value is not None and value not in meant:
        raise settings.wrong("mixed_precision", value, ", ".join(meant))
    return None if value is None else meant[value]
