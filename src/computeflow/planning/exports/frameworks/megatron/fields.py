"""Fields of Megatron Core's configuration classes: what NeMo and Megatron-Bridge lay over a recipe.

Both frameworks start from a recipe and take values over it, so that everything is written out, and
a key that a file leaves out is the recipe's. They differ in where a field is: `Places`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from computeflow.catalog.models import Model
from computeflow.errors import InputError
from computeflow.planning.exports.config_formats import Setup
from computeflow.planning.exports.frameworks.config_keys import ConfigKeys, stated
from computeflow.planning.exports.frameworks.megatron.layout import (
    STRATEGIES,
    STRATEGY_MEANT,
    WAY_MEANT,
    WAYS,
    beside_offloading,
    chunks_of_layout,
    dispatcher,
    sharding_of,
    stages,
)
from computeflow.planning.exports.frameworks.megatron.shape import read_shape, shape_flags

RECIPES = {
    "llama-2-7b": "llama2_7b", "llama-3-8b": "llama3_8b", "llama-3-70b": "llama3_70b",
    "llama-3.1-8b": "llama31_8b", "llama-3.1-70b": "llama31_70b",
    "llama-3.1-405b": "llama31_405b", "llama-3.2-1b": "llama32_1b", "llama-3.2-3b": "llama32_3b",
    "qwen2.5-0.5b": "qwen25_500m", "qwen2.5-1.5b": "qwen25_1p5b", "qwen2.5-7b": "qwen25_7b",
    "qwen2.5-14b": "qwen25_14b", "qwen2.5-32b": "qwen25_32b", "qwen2.5-72b": "qwen25_72b",
    "qwen3-0.6b": "qwen3_600m", "qwen3-1.7b": "qwen3_1p7b", "qwen3-4b": "qwen3_4b",
    "qwen3-8b": "qwen3_8b", "qwen3-14b": "qwen3_14b", "qwen3-32b": "qwen3_32b",
    "qwen3-30b-a3b": "qwen3_30b_a3b", "qwen3-235b-a22b": "qwen3_235b_a22b",
    "deepseek-v2-lite": "deepseek_v2_lite", "deepseek-v2": "deepseek_v2",
    "deepseek-v3": "deepseek_v3", "gemma-2-2b": "gemma2_2b", "gemma-2-9b": "gemma2_9b",
    "gemma-2-27b": "gemma2_27b", "gemma-3-1b": "gemma3_1b", "nemotron-h-8b": "nemotronh_8b",
    "nemotron-h-47b": "nemotronh_47b", "nemotron-h-56b": "nemotronh_56b",
}  # fmt: skip
"""Fields that both formats have: the catalog's name to the stem of theirs."""
_SIZES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}
_RENAMED = {
    "num-experts": "num_moe_experts",
    "swiglu": "gated_linear_unit",
    "disable-bias-linear": "add_bias_linear",
    "untie-embeddings-and-output-weights": "share_embeddings_and_output_weights",
}
_INVERTED = ("disable-bias-linear", "untie-embeddings-and-output-weights")
_SHORT = ("swiglu", "normalization")
"""Flags of one word."""
_SWITCHES = ("swiglu", *_INVERTED, "qk-layernorm", "add-qkv-bias", "multi-latent-attention")
_KNOWN = ("recompute_method", "recompute_num_layers", "recompute_modules", "sequence_parallel",
          "moe_token_dispatcher_type", "moe_shared_expert_overlap", "pipeline_dtype",
          "cpu_offloading_num_layers", "cpu_offloading_activations",
          "cpu_offloading_weights")  # fmt: skip
_KNOWN_DDP = (
    "overlap_grad_reduce",
    "overlap_param_gather",
    "average_in_collective",
    "grad_reduce_in_fp32",
    "check_for_nan_in_grad",
    "bucket_size",
)
_KNOWN_OPTIMIZER = (
    "use_precision_aware_optimizer",
    "optimizer_offload_fraction",
    "overlap_cpu_optimizer_d2h_h2d",
    "overlap_param_gather",
)
"""Known, and of no matter to a layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a framework keeps Megatron Core's fields: prefixes that end in a dot; whole keys."""

    parallel: str
    model: str
    ddp: str
    optimizer: str
    fsdp: str
    """The key that turns Megatron's FSDP on, and what it is set to."""
    fsdp_on: bool | str
    fsdp_off: bool | None
    instances: str
    """The key of the number of copies."""
    fsdp_too: str = ""
    """A second key for the same switch."""


def write_fields(setup: Setup, places: Places, *, muon: bool = False) -> dict[str, Any]:
    """Every setting of the layout, whatever the recipe below says.

    `muon`: the optimizer spreads whole matrices by itself, beside Megatron's distributed optimizer.
    """
    layout = setup.layout
    fields: dict[str, Any] = {
        places.parallel + key: getattr(layout, name) for name, key in _SIZES.items()
    }
    chunks, layers = layout.pp * layout.vp, setup.job.model.layers
    uneven = layers % chunks != 0
    fields[f"{places.parallel}virtual_pipeline_model_parallel_size"] = (
        layout.vp if layout.vp > 1 and not uneven else None
    )
    fields[f"{places.parallel}pipeline_model_parallel_layout"] = (
        stages(layers, chunks) if uneven else None
    )
    fields[f"{places.parallel}sequence_parallel"] = layout.tp > 1 and setup.stack.sequence_parallel
    if layout.cp > 1:
        fields[f"{places.model}cp_comm_type"] = WAYS[layout.context]
    if layout.ep > 1:
        fields[f"{places.model}moe_token_dispatcher_type"] = dispatcher(setup)
        if dispatcher(setup) == "flex":  # recipes switch on what only the other dispatcher has
            fields[f"{places.model}moe_shared_expert_overlap"] = False
    return fields | _memory(setup, places) | _sharding(setup, places, muon)


def _memory(setup: Setup, places: Places) -> dict[str, Any]:
    layout = setup.layout
    full = layout.recompute == "full"
    model: dict[str, Any] = {
        "recompute_granularity": None if layout.recompute == "none" else layout.recompute,
        "recompute_method": "uniform" if full else None,
        "recompute_num_layers": 1 if full else None,
        "cpu_offloading": layout.offload == "activations",
    }
    if layout.offload == "activations":
        layers = max(setup.job.model.layers - 1, 1)
        model |= {"cpu_offloading_num_layers": layers, "cpu_offloading_weights": False}
    optimizer: dict[str, Any] = {"optimizer_cpu_offload": layout.offload == "optimizer"}
    if layout.offload == "optimizer":
        optimizer |= {"optimizer_offload_fraction": 1.0, "use_precision_aware_optimizer": True}
    return {places.model + key: value for key, value in model.items()} | {
        places.optimizer + key: value for key, value in optimizer.items()
    }


def _sharding(setup: Setup, places: Places, muon: bool) -> dict[str, Any]:
    layout, overlaps = setup.layout, setup.stack.dp_overlap
    state, fsdp = layout.sharding != "ddp" and not muon, layout.sharding in STRATEGIES and not muon
    fields: dict[str, Any] = {
        f"{places.ddp}use_distributed_optimizer": state,
        f"{places.optimizer}use_distributed_optimizer": state,
        f"{places.ddp}overlap_grad_reduce": overlaps,
        f"{places.ddp}overlap_param_gather": overlaps and state,
        f"{places.ddp}data_parallel_sharding_strategy": (
            STRATEGIES[layout.sharding] if fsdp else "no_shard"
        ),
        places.fsdp: places.fsdp_on if fsdp else places.fsdp_off,
        places.instances: layout.replicas,
    }
    if places.fsdp_too:
        fields[places.fsdp_too] = fields[places.fsdp]
    if fsdp:
        fields[f"{places.ddp}average_in_collective"] = False
    return fields


def read_fields(settings: ConfigKeys, places: Places, notes: list[str]) -> dict[str, Any]:
    """The layout as far as the file states it."""
    layout = stated(**{name: settings.size(places.parallel + key) for name, key in _SIZES.items()})
    layout |= stated(
        vp=_read_chunks(settings, places, layout.get("pp", 1), notes),
        recompute=_read_recompute(settings, places),
        offload=_read_offload(settings, places),
        context=settings.choice(f"{places.model}cp_comm_type", WAY_MEANT),
    )
    if layout.get("offload") == "activations":
        for name, value in beside_offloading(layout):
            raise settings.against(
                f"{places.model}cpu_offloading", f"{name} = {value}", "one of the two"
            )
    layout |= _read_sharding(settings, places)
    settings.skip(_KNOWN, places.parallel)
    settings.skip(_KNOWN, places.model)
    settings.skip(_KNOWN_DDP, places.ddp)
    settings.skip(_KNOWN_OPTIMIZER, places.optimizer)
    names = ("tp", "pp", "cp", "recompute", "sharding")
    if left := [name for name in names if name not in layout]:
        notes.append(f"left to the recipe: {', '.join(left)}")
    return layout


def agreed(settings: ConfigKeys, first: str, second: str) -> int | None:
    """A size that may be given under two keys."""
    sizes = settings.size(first), settings.size(second)
    return settings.agree((first, second), sizes, "they are the same")


def _read_chunks(settings: ConfigKeys, places: Places, pp: int, notes: list[str]) -> int | None:
    vp_key = f"{places.parallel}virtual_pipeline_model_parallel_size"
    layout_key = f"{places.parallel}pipeline_model_parallel_layout"
    stated_here = vp_key in settings or layout_key in settings
    vp, parts = settings.size(vp_key), settings.raw(layout_key)
    if isinstance(parts, list):
        notes.append(f"{layout_key}: a list of {len(parts)} parts, vp left open")
        return vp
    if parts is None:
        return vp or 1 if stated_here else None
    if not isinstance(parts, str):
        raise settings.wrong(layout_key, parts, "a text like Ett|ttL")
    chunks = chunks_of_layout(parts, pp, layout_key, settings, notes)
    if vp is not None and vp != chunks:
        raise settings.against(f"{vp_key} = {vp}", f"{layout_key} of {chunks}", "one number")
    return chunks


def _read_recompute(settings: ConfigKeys, places: Places) -> str | None:
    key = f"{places.model}recompute_granularity"
    stated_here = key in settings
    recompute = settings.choice(key, {"full": "full", "selective": "selective"})
    return recompute or ("none" if stated_here else None)


def _read_offload(settings: ConfigKeys, places: Places) -> str | None:
    activations = settings.flag(f"{places.model}cpu_offloading")
    state = settings.flag(f"{places.optimizer}optimizer_cpu_offload")
    if activations and state:
        raise settings.against(
            f"{places.model}cpu_offloading",
            f"{places.optimizer}optimizer_cpu_offload",
            "a plan moves one of them to the host",
        )
    if activations is None and state is None:
        return None
    return "activations" if activations else "optimizer" if state else "none"


def _read_sharding(settings: ConfigKeys, places: Places) -> dict[str, Any]:
    key, other = (f"{p}use_distributed_optimizer" for p in (places.ddp, places.optimizer))
    state = settings.agree(
        (key, other), (settings.flag(key), settings.flag(other)), "one optimizer"
    )
    fsdp = _read_fsdp(settings, places)
    strategy_key = f"{places.ddp}data_parallel_sharding_strategy"
    strategy = settings.choice(strategy_key, STRATEGY_MEANT)
    replicas = settings.size(places.instances) or 1
    if fsdp and state is False:
        raise settings.against(f"{places.fsdp} = {fsdp}", f"{key} = {state}", "it needs it")
    if fsdp:
        return sharding_of(strategy, replicas, (places.instances, strategy_key), settings)
    return {} if state is None else {"sharding": "zero1" if state else "ddp", "replicas": 1}


def _read_fsdp(settings: ConfigKeys, places: Places) -> Any:
    fsdp = settings.raw(places.fsdp)
    if fsdp not in (None, False, places.fsdp_on):
        raise settings.wrong(places.fsdp, fsdp, f"{places.fsdp_on} or nothing")
    other = settings.flag(places.fsdp_too) if places.fsdp_too else None
    return settings.agree((places.fsdp, places.fsdp_too), (fsdp, other), "one switch")


class ShapeFields(ConfigKeys):
    """A file of fields, read by the names of Megatron-LM's flags, as far as the shape goes."""

    def __init__(self, tree: Any, where: str, prefix: str) -> None:
        super().__init__(tree, where)
        self.prefix = prefix
        self.positions: int | None = None
        """Sequence length of a learned embedding."""

    def raw(self, key: str) -> Any:
        if key == "group-query-attention":
            return True  # num_query_groups alone says it
        if key == "max-position-embeddings":
            return self.positions
        value = super().raw(self._field(key))
        if key in _INVERTED and isinstance(value, bool):
            return not value
        return _pattern(value) if key == "moe-layer-freq" else value

    def wrong(self, key: str, value: Any, wanted: str) -> InputError:
        return super().wrong(self._field(key), value, wanted)

    def _field(self, key: str) -> str:
        if "." in key or ("-" not in key and key not in _SHORT):
            return key
        return self.prefix + _name(key)


def shape_fields(model: Model) -> dict[str, Any] | None:
    """The model's shape as fields; None where it has no words."""
    flags = shape_flags(model)
    if flags is None:
        return None
    fields: dict[str, Any] = {
        _name(flag): True if value is None else value
        for flag, value in flags.items()
        if flag not in ("group-query-attention", "moe-layer-freq")
    }
    fields.setdefault("num_query_groups", flags["num-attention-heads"])
    for flag in _SWITCHES:
        fields[_name(flag)] = (flag in flags) != (flag in _INVERTED)
    fields["activation_func"] = "silu" if "swiglu" in flags else "gelu"
    if "moe-layer-freq" in flags:
        fields["moe_layer_freq"] = _sparse_layers(model)
    return fields


def _sparse_layers(model: Model) -> list[int]:
    return [int(block.dense is None) for block in model.blocks for _ in range(block.count)]


def read_shape_fields(settings: ShapeFields, notes: list[str]) -> Model | None:
    """The shape; None (and a note) where the file leaves part of it to the recipe."""
    inner: list[str] = []
    settings.raw(f"{settings.prefix}activation_func")
    model = read_shape(settings, inner)
    if inner:
        notes.append("not a whole model: the recipe's, with changes")
    return model


def _name(flag: str) -> str:
    return _RENAMED.get(flag, flag.replace("-", "_"))


def _pattern(value: Any) -> Any:
    """A list of zeros, then ones, in the words of Megatron-LM's flag."""
    if isinstance(value, list) and value and value == sorted(value) and set(value) <= {0, 1}:
        dense = value.count(0)
        return f"([0]*{dense}+[1]*{len(value) - dense})"
    return value
