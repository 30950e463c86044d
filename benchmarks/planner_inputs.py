"""Published runs as inputs of two other planners, Calculon and SimuMax: pure translation.

Each translation gives the planner's own fields and what stands in for what it cannot express, or
raises `InputError` with the reason why it cannot express the run. What we know of the run's links
beyond the shipped machine goes into `known_links`; whether a planner is told is the caller's matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from computeflow.catalog.models import Attention, Block, Dense, Model
from computeflow.cluster import Cluster
from computeflow.errors import InputError
from computeflow.prediction.published_runs import MeasuredRun
from computeflow.workload import Layout

CALCULON_SYSTEMS = {"a100-80-sxm": "a100_80g", "h100-sxm": "h100_80g_nvl8"}
SIMUMAX_SYSTEMS = {"a100-80-sxm": "a100_pcie", "b200-sxm": "b200_bf16_ceperm"}
NODE = 8
"""Devices of a node in every shipped system."""
SHARDED = "sharded weights (FSDP, ZeRO-3) taken as a sharded optimizer"
EQUAL_WORK = "gated layers and grouped keys taken as plain ones of equal FLOPs"
FLASH = "fused attention taken as scores that are computed again, not kept"
TO_ALL = "context parallelism over a ring taken as all-to-all"
FLOAT8 = "all low-precision recipes taken as its float8"
SELECTIVE = "selective recomputation taken as attention's"
_HALF = ("bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a planner is asked, in its own words."""

    inputs: dict[str, Any]
    assumed: tuple[str, ...] = ()
    known_links: dict[str, Any] = field(default_factory=dict)
    """What the run's links are, where the shipped system may have others."""


def calculon_question(case: MeasuredRun) -> Question:
    system = _system(case, CALCULON_SYSTEMS)
    _check(case)
    layout = case.layout
    if layout.cp > 1:
        raise InputError("context parallelism")
    application, execution, assumed = _calculon_model(case.job.model, layout)
    if case.job.precision not in _HALF:
        if "h100" not in system or not case.job.precision.startswith("fp8"):
            raise InputError(f"{case.job.precision} on its {system}")
        assumed += (FLOAT8,)
    if case.layout.offload == "nvme":
        raise InputError("offload to disk")
    assumed += _shared_assumptions(case)
    recompute, kept = _calculon_recompute(case)
    return Question(
        inputs={
            "system": system,
            "application": application | {"seq_size": case.job.seq_len},
            "execution": execution
            | _calculon_execution(case)
            | {"activation_recompute": recompute},
        },
        assumed=assumed + kept,
        known_links={"network_gbps": _network(case.cluster)},
    )


def _calculon_model(
    model: Model, layout: Layout
) -> tuple[dict[str, int], dict[str, str], tuple[str, ...]]:
    """Sizes of equal blocks: multi-head or one-key attention, two matrices of any width."""
    (block,) = _blocks(model, experts=False)
    attention, dense = _softmax(block), block.dense
    if dense is None:
        raise InputError("blocks without a feed-forward part")
    one_key = attention.kv_heads == 1 and attention.heads > 1
    width = equal_width(dense, attention, grouped=not one_key)
    application = {
        "hidden": model.hidden,
        "feedforward": max(round(width / layout.tp), 1) * layout.tp,
        "attn_heads": attention.heads,
        "attn_size": attention.head_dim,
        "num_blocks": block.count,
    }
    assumed = () if width == dense.width else (EQUAL_WORK,)
    return application, {"attention_type": "multiquery" if one_key else "multihead"}, assumed


def equal_width(dense: Dense, attention: Attention, *, grouped: bool = True) -> float:
    """Width of two plain matrices that, beside multi-head attention, do the work of this block."""
    matrices = (3 if dense.gated else 2) * dense.width
    if grouped:
        matrices -= 2 * (attention.heads - attention.kv_heads) * attention.head_dim
    return matrices / 2


def _calculon_recompute(case: MeasuredRun) -> tuple[str, tuple[str, ...]]:
    """Fused attention never keeps its scores, which is what `attn_only` means there."""
    if case.layout.recompute == "full":
        return "full", ()
    if case.layout.recompute == "selective":
        return "attn_only", (SELECTIVE,) if case.stack.selective != "attention" else ()
    return ("none", ()) if case.stack.attention == "unfused" else ("attn_only", (FLASH,))


def _calculon_execution(case: MeasuredRun) -> dict[str, Any]:
    layout, stack = case.layout, case.stack
    dp = _data_ranks(layout)
    tp_net, dp_net, pp_net = _tiers(layout, min(case.cluster.domain, NODE))
    sequence_parallel = stack.sequence_parallel and layout.tp > 1
    return {
        "num_procs": layout.gpus,
        "tensor_par": layout.tp,
        "pipeline_par": layout.pp,
        "data_par": dp,
        "tensor_par_net": tp_net,
        "data_par_net": dp_net,
        "pipeline_par_net": pp_net,
        "batch_size": case.job.global_batch,
        "microbatch_size": layout.micro_batch,
        "datatype": "float16" if case.job.precision in _HALF else "float8",
        "fused_activation": stack.kernels != "eager",
        "pipeline_interleaving": layout.vp,
        "optimizer_sharding": layout.sharding != "ddp" and dp > 1,
        "tensor_par_comm_type": "rs_ag" if sequence_parallel else "ar",
        "tensor_par_overlap": "none",  # its rings hide all of it: 23 instead of 13 % (docs/log.md)
        "seq_par_ag_redo": sequence_parallel and layout.recompute == "selective",
        "data_par_overlap": stack.dp_overlap and dp > 1,
        "weight_offload": layout.offload == "parameters",
        "activations_offload": layout.offload == "activations",
        "optimizer_offload": layout.offload in ("optimizer", "parameters"),
        "training": True,
    }


def _tiers(layout: Layout, node: int) -> tuple[int, int, int]:
    """Network of tensor, data and pipeline groups: 0 inside a node; ranks grow in that order."""
    tensor = layout.tp
    data = tensor * _data_ranks(layout)
    pipeline = data * layout.pp
    tp_net, dp_net, pp_net = (int(size > node) for size in (tensor, data, pipeline))
    return tp_net, dp_net, pp_net


def simumax_question(case: MeasuredRun) -> Question:
    system = _system(case, SIMUMAX_SYSTEMS)
    _check(case)
    if case.job.precision not in _HALF:
        raise InputError(f"{case.job.precision}: its shipped systems have bf16 rates only")
    if case.layout.offload != "none":
        raise InputError("offload")
    if case.layout.vp > 1 and case.layout.pp < 3:
        raise InputError("an interleaved schedule over two stages")
    assumed = _shared_assumptions(case)
    if case.layout.cp > 1 and case.layout.context != "all-to-all":
        assumed += (TO_ALL,)
    if case.layout.recompute == "selective" and case.stack.selective != "attention":
        assumed += (SELECTIVE,)
    model = _simumax_model(case.job.model)
    return Question(
        inputs={
            "system": system,
            "model": model,
            "strategy": _simumax_strategy(case) | _stages(model["layer_num"], case.layout),
        },
        assumed=assumed,
        known_links={"network_gbps": _network(case.cluster), "nvlink": system == "a100_pcie"},
    )


def _simumax_model(model: Model) -> dict[str, Any]:
    blocks = _blocks(model, experts=True)
    dense = next((block.dense for block in blocks if block.dense), None)
    experts = next((block.experts for block in blocks if block.experts), None)
    feed_forward = experts or dense
    if feed_forward is None:
        raise InputError("blocks without a feed-forward part")
    fields: dict[str, Any] = {
        "model_name": model.name,
        "hidden_size": model.hidden,
        "intermediate_size": dense.width if dense else feed_forward.width,
        "layer_num": sum(block.count for block in blocks),
        "vocab_size": model.vocab,
        "use_swiglu": feed_forward.gated,
    }
    if experts:
        fields |= {
            "model_type": "moe",
            "expert_num": experts.count,
            "topk": experts.top_k,
            "moe_ffn_hidden_size": experts.width,
            "moe_shared_expert_intermediate_size": experts.shared_width or None,
            "dense_layers": sum(block.count for block in blocks if block.dense),
        }
    return fields | _simumax_attention(blocks[0])


def _simumax_attention(block: Block) -> dict[str, Any]:
    if latent := block.latent:
        return {
            "attention_type": "mla",
            "head_num": latent.heads,
            "kv_head_num": latent.heads,
            "head_size": latent.nope_dim,
            "qk_head_dim": latent.nope_dim,
            "qk_pos_emb_head_dim": latent.rope_dim,
            "v_head_dim": latent.value_dim,
            "q_lora_rank": latent.q_rank,
            "kv_lora_rank": latent.kv_rank,
        }
    attention = _softmax(block)
    return {
        "head_num": attention.heads,
        "kv_head_num": attention.kv_heads,
        "head_size": attention.head_dim,
    }


def _simumax_strategy(case: MeasuredRun) -> dict[str, Any]:
    layout, stack, job = case.layout, case.stack, case.job
    layers = sum(block.count for block in job.model.blocks)
    return {
        "seq_len": job.seq_len,
        "micro_batch_size": layout.micro_batch,
        "micro_batch_num": job.global_batch // (_data_ranks(layout) * layout.micro_batch),
        "dtype": "bf16",
        "world_size": layout.gpus,
        "tp_size": layout.tp,
        "cp_size": layout.cp,
        "pp_size": layout.pp,
        "ep_size": layout.ep,
        "etp_size": layout.etp,
        "interleaving_size": layout.vp,
        "pp_comm_async": layout.vp == 1,  # its timing of interleaved schedules is synchronous
        "enable_sequence_parallel": stack.sequence_parallel and layout.tp > 1,
        "zero_state": int(layout.sharding != "ddp"),
        "grad_reduce_in_bf16": stack.grad_bytes < 4,
        "use_flash_sdp": stack.attention != "unfused",
        "overlap_grad_reduce": stack.dp_overlap,
        "dispatch_probs": stack.year >= 2025,
        "enable_recompute": layout.recompute != "none",
        "recompute_granularity": {"none": None, "selective": "sdp_only"}.get(
            layout.recompute, "full_block"
        ),
        "recompute_layer_num": layers if layout.recompute != "none" else 0,
    }


def _stages(layers: int, layout: Layout) -> dict[str, Any]:
    """Stages of layers that do not divide: embedding and head count as layers, or the last has less."""
    parts = layout.pp * layout.vp
    if layers % parts == 0:
        return {}
    if (layers + 2) % parts == 0:
        return {
            "account_for_embedding_in_pipeline_split": True,
            "account_for_loss_in_pipeline_split": True,
        }
    last = layers - -(-layers // layout.pp) * (layout.pp - 1)
    if layout.vp > 1 or last < 1:
        raise InputError("layers that do not divide over the stages")
    return {"num_layers_in_last_pipeline_stage": last}


def _system(case: MeasuredRun, systems: dict[str, str]) -> str:
    device = case.cluster.accelerator.name
    if device not in systems:
        raise InputError("no system shipped for the device")
    return systems[device]


def _check(case: MeasuredRun) -> None:
    """Reasons that hold for both planners."""
    job, layout = case.job, case.layout
    if job.training != "full":
        raise InputError("low-rank updates")
    if job.optimizer != "adamw":
        raise InputError("an optimizer other than Adam")
    if job.multi_token:
        raise InputError("multi-token prediction")
    if layout.schedule != "1f1b":
        raise InputError("a schedule other than 1F1B")
    if layout.recompute == "selective" and case.stack.selective == "half":
        raise InputError("recomputation of half of the products")
    for block in job.model.blocks:
        attention = block.attention
        if attention and min(attention.window or job.seq_len, attention.chunk or job.seq_len) < (
            job.seq_len
        ):
            raise InputError("attention within a window")


def _blocks(model: Model, *, experts: bool) -> tuple[Block, ...]:
    """One kind of block; or dense ones and then ones with experts, where that can be expressed."""
    blocks = model.blocks
    if any(block.experts for block in blocks) and not experts:
        raise InputError("experts")
    mixers = {(block.attention, block.latent) for block in blocks}
    kinds = [block.experts is not None for block in blocks]
    if len(mixers) > 1 or len(blocks) > len(set(kinds)) or kinds != sorted(kinds):
        raise InputError("blocks of several kinds")
    return blocks


def _softmax(block: Block) -> Attention:
    if block.attention is None:
        raise InputError("a mixer other than softmax attention")
    return block.attention


def _shared_assumptions(case: MeasuredRun) -> tuple[str, ...]:
    return (SHARDED,) if case.layout.sharding in ("zero3", "fsdp", "hsdp") else ()


def _data_ranks(layout: Layout) -> int:
    return layout.gpus // (layout.tp * layout.pp * layout.cp)


def _network(cluster: Cluster) -> float | None:
    """GB/s of one device between nodes; None inside of one."""
    return cluster.tiers[-1].bytes_per_second / 1e9 if len(cluster.tiers) > 1 else None
