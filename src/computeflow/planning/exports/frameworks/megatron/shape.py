"""The shape of a model in Megatron-LM's words: flags of a `Model`, and a `Model` of flags."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

from computeflow.catalog.models import Attention, Block, Dense, Experts, LatentAttention, Model
from computeflow.errors import InputError
from computeflow.planning.exports.frameworks.config_keys import ConfigKeys, stated

Flags = dict[str, int | str | None]
"""Flags without the dashes; None: a flag without a value."""
AS_OF = "2026-08-22"
_NEEDED = ("num-layers", "hidden-size", "vocab-size", "num-attention-heads")
_SHAPE_SWITCHES = ("swiglu", "disable-bias-linear", "untie-embeddings-and-output-weights")
_PATTERN = re.compile(r"\[([01](?:,[01]){0,200})\](?:\*(\d{1,4}))?")
_TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
"""Vocabularies that the name of a tokenizer settles: openai/gpt-2, arXiv:2307.09288."""


_DENSE, _SPARSE = (True, False), (False, True)
_ORDERS = ([_DENSE], [_SPARSE], [_DENSE, _SPARSE])
"""Kinds of blocks in a model: whether each has a dense layer, and experts."""


def shape_flags(model: Model) -> Flags | None:
    """Flags of a shape; None where there are none: hybrids, windows, mixed learned positions."""
    if not _has_words(model):
        return None
    first, last, feeds = model.blocks[0], model.blocks[-1], _feed_forwards(model)
    flags: Flags = {
        "num-layers": model.layers,
        "hidden-size": model.hidden,
        "vocab-size": model.vocab,
    }
    flags |= _mixer(first) | _switch("swiglu", feeds[0].gated)
    if first.dense is not None:
        flags["ffn-hidden-size"] = first.dense.width
    if last.experts is not None:
        flags |= _experts(last.experts, model.layers, last.count)
    flags["normalization"] = "RMSNorm" if model.norm == "rms" else "LayerNorm"
    flags |= _switch("disable-bias-linear", not any(f.bias for f in feeds))
    flags |= _switch("untie-embeddings-and-output-weights", not model.tied)
    flags["position-embedding-type"] = "learned_absolute" if model.positions else "rope"
    return flags


def _has_words(model: Model) -> bool:
    kinds = [(b.dense is not None, b.experts is not None) for b in model.blocks]
    if kinds not in _ORDERS or model.norm not in ("rms", "layer"):
        return False
    mixers = {(b.attention, b.latent) for b in model.blocks}
    gated = {f.gated for f in _feed_forwards(model)}
    return len(mixers) == len(gated) == 1 and all(_known_mixer(*mixer) for mixer in mixers)


def _known_mixer(attention: Attention | None, latent: LatentAttention | None) -> bool:
    if attention is None:
        return latent is not None
    limited = attention.window or attention.chunk or attention.sinks
    return not limited and attention.qk_norm != "full"


def _feed_forwards(model: Model) -> list[Dense | Experts]:
    return [f for b in model.blocks if (f := b.dense or b.experts)]


def _mixer(block: Block) -> Flags:
    flags = {} if block.attention is None else _attention(block.attention)
    return flags if block.latent is None else flags | _latent(block.latent)


def _switch(flag: str, on: bool) -> Flags:
    return {flag: None} if on else {}


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
        "multi-latent-attention": None,
        "num-attention-heads": latent.heads,
        "kv-lora-rank": latent.kv_rank,
        "qk-head-dim": latent.nope_dim,
        "qk-pos-emb-head-dim": latent.rope_dim,
        "v-head-dim": latent.value_dim,
    }
    return flags if latent.q_rank is None else flags | {"q-lora-rank": latent.q_rank}


def _experts(experts: Experts, layers: int, count: int) -> Flags:
    flags: Flags = {
        "num-experts": experts.count,
        "moe-router-topk": experts.top_k,
        "moe-ffn-hidden-size": experts.width,
    }
    if experts.shared_width:
        flags["moe-shared-expert-intermediate-size"] = experts.shared_width
    if experts.router_bias:
        flags |= {"moe-router-enable-expert-bias": None, "moe-router-score-function": "sigmoid"}
    if count != layers:
        flags["moe-layer-freq"] = f"([0]*{layers - count}+[1]*{count})"
    return flags


def read_shape(settings: ConfigKeys, notes: list[str]) -> Model | None:
    """A model of the flags; None (and a note) where they do not make one."""
    sizes: dict[str, Any] = {key: settings.size(key) for key in (*_NEEDED, "ffn-hidden-size")}
    sizes["vocab-size"] = _read_vocab(settings, sizes["vocab-size"], notes)
    gated, unbiased, untied = (bool(settings.flag(key)) for key in _SHAPE_SWITCHES)
    norm = settings.choice("normalization", {"RMSNorm": "rms", "LayerNorm": "layer"})
    positions = _read_positions(settings)
    gated = settings.text("glu-activation") == "swiglu" or gated
    embedding_norm = bool(settings.flag("embed-layernorm"))
    mixer = _read_mixer(settings, sizes, not unbiased)
    experts, first = _read_experts(settings, gated, sizes)
    missing = [key for key in _NEEDED if sizes[key] is None]
    if missing or mixer is None:
        if set(sizes.values()) != {None}:
            notes.append(f"the model is not whole: --{missing[0]} is not stated")
        return None
    feed = Dense(
        width=sizes["ffn-hidden-size"] or 4 * sizes["hidden-size"], gated=gated, bias=not unbiased
    )
    dense = Block(count=sizes["num-layers"], dense=feed, **mixer)
    return Model(
        name="of-the-file",
        source=settings.where,
        as_of=AS_OF,
        family="megatron",
        hidden=sizes["hidden-size"],
        vocab=sizes["vocab-size"],
        blocks=(dense,) if experts is None else _with_experts(dense, experts, first, settings),
        tied=not untied,
        norm="rms" if norm == "rms" else "layer",
        positions=positions,
        embedding_norm=embedding_norm,
    )


def _with_experts(
    dense: Block, experts: Experts, first: int, settings: ConfigKeys
) -> tuple[Block, ...]:
    """Layers of which only the first ones stay without experts."""
    layers = dense.count
    if first >= layers:
        raise settings.against(
            f"{first} dense layers", f"num-layers = {layers}", "none has experts"
        )
    sparse = replace(dense, count=layers - first, dense=None, experts=experts)
    return (replace(dense, count=first), sparse) if first else (sparse,)


def _read_positions(settings: ConfigKeys) -> int:
    """Positions of a learned embedding; 0 where there is none."""
    kind = settings.text("position-embedding-type")
    if settings.flag("use-rotary-position-embeddings") or settings.flag("no-position-embedding"):
        kind = kind or "rope"
    longest = settings.size("max-position-embeddings") or 0
    return longest if kind in (None, "learned_absolute") else 0


def _read_vocab(settings: ConfigKeys, stated_size: int | None, notes: list[str]) -> int | None:
    """Vocabulary, padded where the file says so; else that of a tokenizer known by name."""
    padded = [settings.size(key) for key in ("padded-vocab-size", "pad-vocab-size-to")]
    tokenizer = settings.raw("tokenizer-type")
    vocab = next((size for size in (*padded, stated_size) if size is not None), None)
    if vocab is None and tokenizer in _TOKENIZERS:
        vocab = _TOKENIZERS[tokenizer]
        notes.append(f"--tokenizer-type {tokenizer}: a vocabulary of {vocab:,}")
    return vocab


def _read_mixer(settings: ConfigKeys, sizes: dict[str, Any], bias: bool) -> dict[str, Any] | None:
    latent, kv_heads = settings.flag("multi-latent-attention"), _read_kv_heads(settings)
    heads, channels = sizes["num-attention-heads"], settings.size("kv-channels")
    ranks = stated(
        kv_rank=settings.size("kv-lora-rank"),
        q_rank=settings.size("q-lora-rank"),
        nope_dim=settings.size("qk-head-dim"),
        rope_dim=settings.size("qk-pos-emb-head-dim"),
        value_dim=settings.size("v-head-dim"),
    )
    normed, qkv = settings.flag("qk-layernorm"), settings.flag("add-qkv-bias")
    if heads is None:
        return None
    if latent:
        plain = {"kv_rank": 32, "nope_dim": 128, "rope_dim": 64, "value_dim": 128}
        return {"latent": LatentAttention(heads=heads, **{**plain, **ranks})}
    hidden = sizes["hidden-size"] or heads
    try:
        attention = Attention(
            heads=heads,
            kv_heads=kv_heads or heads,
            head_dim=channels or max(hidden // heads, 1),
            qkv_bias=bias or bool(qkv),
            out_bias=bias,
            qk_norm="head" if normed else "none",
        )
    except InputError as error:
        raise InputError(f"{settings.where}: {error}") from None
    return {"attention": attention}


def _read_kv_heads(settings: ConfigKeys) -> int | None:
    grouped, groups = settings.flag("group-query-attention"), settings.size("num-query-groups")
    return groups if grouped else None


def _read_experts(
    settings: ConfigKeys, gated: bool, sizes: dict[str, Any]
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


def _read_frequency(settings: ConfigKeys, pattern: Any, layers: int | None) -> int:
    """Layers without experts: of every Nth layer, or of a list such as ([0]*3+[1]*58)."""
    if pattern is None:
        return 0
    if type(pattern) is int and pattern > 0:
        return 0 if layers is None else layers - -(-layers // pattern)
    kinds = _count_kinds(pattern)
    if not kinds:
        raise settings.wrong("moe-layer-freq", pattern, "N or ([0]*A+[1]*B)")
    if layers is not None and kinds.total() != layers:
        raise settings.against(
            f"moe-layer-freq = {pattern}", f"num-layers = {layers}", "it counts others"
        )
    return kinds["0"]


def _count_kinds(pattern: Any) -> Counter[str]:
    """Zeros and ones of a list of layers; empty where it is no such list."""
    text = re.sub(r"[\s'\"]", "", str(pattern)).strip("()")
    counts: Counter[str] = Counter()
    if _PATTERN.sub("", text).strip("+"):
        return counts
    for items, times in _PATTERN.findall(text):
        for kind in items.split(","):
            counts[kind] += int(times or 1)
    return counts
