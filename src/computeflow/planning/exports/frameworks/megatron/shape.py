"""The shape of a model in Megatron-LM's words: flags of a `Model`, and a `Model` of flags."""

from __future__ import annotations

import re
from typing import Any

from computeflow.catalog.models import Attention, Block, Dense, Experts, LatentAttention, Model
from computeflow.errors import InputError
from computeflow.planning.exports.frameworks.settings import Settings, stated

Flags = dict[str, int | str | None]
"""Without the dashes; None: a flag without a value."""
AS_OF = "2026-08-22"
_PATTERN = re.compile(r"\[([01](?:,[01]){0,200})\](?:\*(\d{1,4}))?")
TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
"""Vocabularies that the name of a tokenizer settles: openai/gpt-2, arXiv:2307.09288."""


def shape_flags(model: Model) -> Flags | None:
    """None where the shape has no words: hybrids, windows, learned positions beside others."""
    dense = [b for b in model.blocks if b.dense is not None]
    experts = [b for b in model.blocks if b.experts is not None]
    mixers = {(b.attention, b.latent) for b in model.blocks}
    if len(mixers) != 1 or len(dense) > 1 or len(experts) > 1 or model.blocks != (*dense, *experts):
        return None
    ((attention, latent),) = mixers
    if attention is None and latent is None:
        return None
    flags: Flags = {
        "num-layers": model.layers,
        "hidden-size": model.hidden,
        "vocab-size": model.vocab,
    }
    if attention is not None:
        if attention.window or attention.chunk or attention.sinks or attention.qk_norm == "full":
            return None
        flags |= _attention(attention)
    if latent is not None:
        flags |= _latent(latent)
    gated = {f.gated for b in model.blocks if (f := b.dense or b.experts)}
    if len(gated) != 1 or model.norm not in ("rms", "layer"):
        return None
    if gated == {True}:
        flags["swiglu"] = None
    if dense and dense[0].dense:
        flags["ffn-hidden-size"] = dense[0].dense.width
    if experts and experts[0].experts:
        flags |= _experts(experts[0].experts, model.layers, experts[0].count)
    flags["normalization"] = "RMSNorm" if model.norm == "rms" else "LayerNorm"
    if not any(f.bias for b in model.blocks if (f := b.dense or b.experts)):
        flags["disable-bias-linear"] = None
    if not model.tied:
        flags["untie-embeddings-and-output-weights"] = None
    flags["position-embedding-type"] = "learned_absolute" if model.positions else "rope"
    return flags


def _attention(attention: Attention) -> Flags:
    flags: Flags = {"num-attention-heads": attention.heads, "kv-channels": attention.head_dim}
    if attention.kv_heads != attention.heads:
        flags |= {"group-query-attention": None, "num-query-groups": attention.kv_heads}
    if attention.qk_norm == "head":
        flags["qk-layernorm"] = None
    if attention.qkv_bias and not attention.out_bias:
        flags["add-qkv-bias"] = None
    return flags


def _latent(latent: LatentAttention) -> Flags:
    flags: Flags = {
        "multi-latent-attention": None, "num-attention-heads": latent.heads,
        "kv-lora-rank": latent.kv_rank, "qk-head-dim": latent.nope_dim,
        "qk-pos-emb-head-dim": latent.rope_dim, "v-head-dim": latent.value_dim,
    }  # fmt: skip
    return flags if latent.q_rank is None else flags | {"q-lora-rank": latent.q_rank}


def _experts(experts: Experts, layers: int, count: int) -> Flags:
    flags: Flags = {
        "num-experts": experts.count, "moe-router-topk": experts.top_k,
        "moe-ffn-hidden-size": experts.width,
    }  # fmt: skip
    if experts.shared_width:
        flags["moe-shared-expert-intermediate-size"] = experts.shared_width
    if experts.router_bias:
        flags |= {"moe-router-enable-expert-bias": None, "moe-router-score-function": "sigmoid"}
    if count != layers:
        flags["moe-layer-freq"] = f"([0]*{layers - count}+[1]*{count})"
    return flags


def read_shape(settings: Settings, notes: list[str]) -> Model | None:
    """A model of the flags; None (and a note) where they do not make one."""
    sizes: dict[str, Any] = {
        key: settings.size(key)
        for key in (
            "num-layers", "hidden-size", "vocab-size", "num-attention-heads", "ffn-hidden-size",
        )
    }  # fmt: skip
    sizes["vocab-size"] = _read_vocab(settings, sizes["vocab-size"], notes)
    flags = {
        key: settings.flag(key) or False
        for key in (
            "swiglu", "disable-bias-linear", "untie-embeddings-and-output-weights",
        )
    }  # fmt: skip
    norm = settings.choice("normalization", {"RMSNorm": "rms", "LayerNorm": "layer"})
    positions = settings.text("position-embedding-type")
    if settings.flag("use-rotary-position-embeddings") or settings.flag("no-position-embedding"):
        positions = positions or "rope"
    flags["swiglu"] = settings.text("glu-activation") == "swiglu" or flags["swiglu"]
    embedding_norm = settings.flag("embed-layernorm") or False
    longest = settings.size("max-position-embeddings")
    mixer = _read_mixer(settings, sizes, not flags["disable-bias-linear"])
    experts = _read_experts(settings, flags["swiglu"], sizes)
    missing = [key for key in ("num-layers", "hidden-size", "vocab-size") if sizes[key] is None]
    if missing or mixer is None:
        if any(value is not None for value in sizes.values()):
            lacks = (missing or ["num-attention-heads"])[0]
            notes.append(f"the model is not whole: --{lacks} is not stated")
        return None
    width = sizes["ffn-hidden-size"] or 4 * sizes["hidden-size"]
    dense = Dense(width=width, gated=flags["swiglu"], bias=not flags["disable-bias-linear"])
    layers, first = sizes["num-layers"], experts[1]
    if first >= layers and experts[0] is not None:
        raise settings.against(
            f"{first} dense layers", f"num-layers = {layers}", "none has experts"
        )
    blocks = [Block(count=layers if experts[0] is None else first, dense=dense, **mixer)] if (
        experts[0] is None or first
    ) else []  # fmt: skip
    if experts[0] is not None:
        blocks.append(Block(count=layers - first, experts=experts[0], **mixer))
    learned = positions in (None, "learned_absolute")
    return Model(
        name="of-the-file", source=settings.where, as_of=AS_OF, family="megatron",
        hidden=sizes["hidden-size"], vocab=sizes["vocab-size"], blocks=tuple(blocks),
        tied=not flags["untie-embeddings-and-output-weights"],
        norm="rms" if norm == "rms" else "layer", positions=(longest or 0) if learned else 0,
        embedding_norm=embedding_norm,
    )  # fmt: skip


def _read_vocab(settings: Settings, stated_size: int | None, notes: list[str]) -> int | None:
    """As it is padded where the file says so; else of a tokenizer whose name settles it."""
    padded = [settings.size(key) for key in ("padded-vocab-size", "pad-vocab-size-to")]
    tokenizer = settings.raw("tokenizer-type")
    found = next((size for size in (*padded, stated_size) if size is not None), None)
    if found is None and tokenizer in TOKENIZERS:
        found = TOKENIZERS[tokenizer]
        notes.append(f"--tokenizer-type {tokenizer}: a vocabulary of {found:,}")
    return found


def _read_mixer(settings: Settings, sizes: dict[str, Any], bias: bool) -> dict[str, Any] | None:
    latent, grouped = (
        settings.flag("multi-latent-attention"),
        settings.flag("group-query-attention"),
    )
    heads = sizes["num-attention-heads"]
    groups, channels = settings.size("num-query-groups"), settings.size("kv-channels")
    ranks = stated(
        kv_rank=settings.size("kv-lora-rank"), q_rank=settings.size("q-lora-rank"),
        nope_dim=settings.size("qk-head-dim"), rope_dim=settings.size("qk-pos-emb-head-dim"),
        value_dim=settings.size("v-head-dim"),
    )  # fmt: skip
    normed, qkv = settings.flag("qk-layernorm"), settings.flag("add-qkv-bias")
    if heads is None:
        return None
    if latent:
        plain = {"kv_rank": 32, "nope_dim": 128, "rope_dim": 64, "value_dim": 128}
        return {"latent": LatentAttention(heads=heads, **{**plain, **ranks})}
    hidden = sizes["hidden-size"] or heads
    try:
        attention = Attention(
            heads=heads, kv_heads=(groups or heads) if grouped else heads,
            head_dim=channels or max(hidden // heads, 1),
            qkv_bias=bias or bool(qkv), out_bias=bias, qk_norm="head" if normed else "none",
        )  # fmt: skip
    except InputError as error:
        raise InputError(f"{settings.where}: {error}") from None
    return {"attention": attention}


def _read_experts(
    settings: Settings, gated: bool, sizes: dict[str, Any]
) -> tuple[Experts | None, int]:
    """Experts, and how many layers before them have none."""
    count, top_k = settings.size("num-experts"), settings.size("moe-router-topk") or 2
    width, shared = (
        settings.size("moe-ffn-hidden-size"),
        settings.size("moe-shared-expert-intermediate-size"),
    )
    biased = settings.flag("moe-router-enable-expert-bias") or False
    settings.text("moe-router-score-function")
    pattern = settings.raw("moe-layer-freq")
    if count is None:
        return None, 0
    if top_k > count:
        raise settings.against(
            f"moe-router-topk = {top_k}", f"num-experts = {count}", "more than all"
        )
    first = _read_frequency(settings, pattern, sizes["num-layers"])
    width = width or sizes["ffn-hidden-size"] or 4 * (sizes["hidden-size"] or 1)
    return Experts(
        count=count,
        top_k=top_k,
        width=width,
        gated=gated,
        shared_width=shared or 0,
        router_bias=biased,
    ), first


def _read_frequency(settings: Settings, pattern: Any, layers: int | None) -> int:
    """Layers without experts: of every Nth layer, or of a list such as ([0]*3+[1]*58)."""
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 0:
        return 0 if layers is None else layers - -(-layers // pattern)
    if pattern is None:
        return 0
    text = re.sub(r"[\s'\"]", "", str(pattern)).strip("()")
    parts = _PATTERN.findall(text)
    if not parts or _PATTERN.sub("", text).strip("+"):
        raise settings.wrong("moe-layer-freq", pattern, "N or ([0]*A+[1]*B)")
    counts = [(items.split(","), int(times or 1)) for items, times in parts]
    dense, all_layers = (
        sum(sum(item in kinds for item in items) * times for items, times in counts)
        for kinds in ("0", "01")
    )
    if layers is not None and all_layers != layers:
        raise settings.against(
            f"moe-layer-freq = {pattern}", f"num-layers = {layers}", "it counts others"
        )
    return dense
