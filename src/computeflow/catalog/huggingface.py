"""A Hugging Face `config.json` becomes a `Model`. Start with `read_config`.

Each family (`model_type`) has one function below that names the keys it reads; `_FAMILIES` adds
the defaults of its transformers class, since files leave keys out. What a config does not say
(published totals, a date) stays empty. A key that is missing, of the wrong type or out of range is
an `InputError`, and nothing else escapes.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from computeflow.catalog.config import Config, short
from computeflow.catalog.models import (
    Attention,
    Block,
    CompressedAttention,
    Dense,
    Experts,
    LatentAttention,
    Model,
    StateSpace,
)
from computeflow.errors import InputError, UnknownNameError
from computeflow.files.limits import LAYERS
from computeflow.files.names import check_name, shown
from computeflow.files.parsing import parse_json
from computeflow.files.reading import read_text


def read_config(path: Path) -> Model:
    """The model of a `config.json`, named after its folder; of `name.json`, after the file."""
    config = parse_json(read_text(path), str(path), finite=False)
    if not isinstance(config, dict):
        raise InputError(f"{path}: not a config.json: the top level is not an object")
    name = path.stem if path.stem != "config" else path.absolute().parent.name
    check_name(name or "config", "the model's folder or file")
    written = datetime.datetime.fromtimestamp(path.stat().st_mtime, tz=datetime.UTC)
    return model_from_config(config, name or "config", written.date().isoformat())


def model_from_config(config: Mapping[str, Any], name: str, as_of: str) -> Model:
    """`as_of` is the date of the file: a config carries none."""
    try:
        family = Config(config).text("model_type")
        if family not in _FAMILIES:
            known = f"known families: {', '.join(_FAMILIES)}"
            raise UnknownNameError("model_type", short(family), [*_FAMILIES], hint=known)
        build, defaults = _FAMILIES[family]
        return build(Config(config).text_model(defaults, name, family, as_of))
    except UnknownNameError:
        raise
    except InputError as error:
        raise InputError(f"config of {shown(name)}: {error}") from None


def _model(
    c: Config,
    blocks: Iterable[Block],
    *,
    hidden: int | None = None,
    norm: Literal["rms", "layer", "layer-nobias", "none"] = "rms",
    embedding_norm: bool = False,
    positions: int = 0,
    context: int | None = None,
    prediction: Iterable[Block] = (),
) -> Model:
    return Model(
        name=c.name,
        family=c.family,
        source="config.json given by the user",
        as_of=c.as_of,
        hidden=hidden or c.size("hidden_size"),
        vocab=c.size("vocab_size"),
        blocks=_grouped(blocks),
        prediction_blocks=_grouped(prediction),
        tied=c.flag("tie_word_embeddings"),
        positions=positions,
        norm=norm,
        embedding_norm=embedding_norm,
        context=context or c.optional("max_position_embeddings"),
    )


def _grouped(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Equal blocks once, with their number, in the order in which they first occur."""
    return tuple(replace(block, count=count) for block, count in Counter(blocks).items())


def _attention(c: Config, **more: Any) -> Attention:
    heads, bias = c.size("num_attention_heads"), c.flag("attention_bias")
    given: dict[str, Any] = {
        "heads": heads,
        "kv_heads": c.size("num_key_value_heads", heads),
        "head_dim": c.size("head_dim|attention_head_dim", c.size("hidden_size") // heads),
        "qkv_bias": bias,
        "out_bias": bias,
    }
    return Attention(**(given | more))


def _mlp(c: Config, *, gated: bool = True) -> Dense:
    return Dense(width=c.size("intermediate_size"), gated=gated, bias=c.flag("mlp_bias"))


def _dense_model(c: Config, attention: Attention) -> Model:
    block = Block(count=1, attention=attention, dense=_mlp(c))
    return _model(c, [block] * len(c.layers()))


def _llama(c: Config) -> Model:
    return _dense_model(c, _attention(c))


def _mistral(c: Config) -> Model:
    return _dense_model(c, _attention(c, window=c.optional("sliding_window")))


def _qwen2(c: Config) -> Model:
    return _dense_model(c, _attention(c, qkv_bias=True, out_bias=False))


def _qwen3(c: Config) -> Model:
    return _dense_model(c, _attention(c, qk_norm="head"))


def _olmo(c: Config) -> Model:
    return replace(_llama(c), norm="none")


def _olmo2(c: Config) -> Model:
    return _dense_model(c, _attention(c, qk_norm="full"))


def _nemotron(c: Config) -> Model:
    block = Block(count=1, attention=_attention(c), dense=_mlp(c, gated=False))
    return _model(c, [block] * len(c.layers()), norm="layer")


def _few_experts(c: Config, **more: Any) -> Experts:
    """Experts as wide as a dense part would be, without shared ones."""
    return Experts(
        count=c.size("num_local_experts|num_experts"),
        top_k=c.size("num_experts_per_tok|experts_per_token"),
        width=c.size("intermediate_size"),
        **more,
    )


def _mixtral(c: Config) -> Model:
    attention = _attention(c, window=c.optional("sliding_window"))
    block = Block(count=1, attention=attention, experts=_few_experts(c))
    return _model(c, [block] * len(c.layers()))


def _grok(c: Config) -> Model:
    block = Block(count=1, attention=_attention(c), experts=_few_experts(c), norms=4)
    return _model(c, [block] * len(c.layers()))


def _gpt_oss(c: Config) -> Model:
    attention, experts = _attention(c, sinks=True), _few_experts(c, bias=True, router_bias=True)
    blocks = [
        Block(count=1, attention=replace(attention, window=window), experts=experts)
        for window in _windows(c, every=2)
    ]
    return _model(c, blocks)


def _windows(c: Config, every: int) -> list[int | None]:
    """The window of each layer, by `layer_types`; without it, each `every`-th layer sees all."""
    usual = ["sliding_attention" if (i + 1) % every else "full_attention" for i in c.layers()]
    window = c.size("sliding_window")
    kinds = c.per_layer("layer_types", usual)
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _gemma2(c: Config) -> Model:
    return _windowed_gemma(c, _attention(c), every=2)


def _gemma3(c: Config) -> Model:
    return _windowed_gemma(c, _attention(c, qk_norm="head"), every=c.size("sliding_window_pattern"))


def _windowed_gemma(c: Config, attention: Attention, every: int) -> Model:
    mlp = _mlp(c)
    blocks = [
        Block(count=1, attention=replace(attention, window=window), dense=mlp, norms=4)
        for window in _windows(c, every)
    ]
    return _model(c, blocks)


def _llama4(c: Config) -> Model:
    """Experts in every `interleave_moe_layer_step`-th layer; layers without rotation see all."""
    full = _attention(c)
    chunked = replace(full, chunk=c.size("attention_chunk_size"))
    experts = _few_experts(c, shared_width=c.size("intermediate_size"))
    dense = Dense(width=c.size("intermediate_size_mlp"))
    rotated = c.per_layer("no_rope_layers", [(i + 1) % 4 for i in c.layers()])
    step = c.size("interleave_moe_layer_step")
    blocks = []
    for layer, has_rotation in enumerate(rotated, start=1):
        block = Block(count=1, attention=chunked if has_rotation else full)
        sparse = layer % step == 0
        blocks.append(replace(block, experts=experts) if sparse else replace(block, dense=dense))
    return _model(c, blocks)


def _qwen2_moe(c: Config) -> Model:
    attention = _attention(c, qkv_bias=True, out_bias=False)
    return _qwen_experts(c, attention, c.size("shared_expert_intermediate_size"))


def _qwen3_moe(c: Config) -> Model:
    return _qwen_experts(c, _attention(c, qk_norm="head"), shared_width=0)


def _qwen_experts(c: Config, attention: Attention, shared_width: int) -> Model:
    """Experts in every `decoder_sparse_step`-th layer that is not listed as dense."""
    experts = Experts(
        count=c.size("num_experts"),
        top_k=c.size("num_experts_per_tok"),
        width=c.size("moe_intermediate_size"),
        shared_width=shared_width,
        shared_gate=shared_width > 0,
    )
    sparse = Block(count=1, attention=attention, experts=experts)
    dense = Block(count=1, attention=attention, dense=_mlp(c))
    step, listed = c.size("decoder_sparse_step", 1), c.items("mlp_only_layers")
    return _model(c, [dense if i in listed or (i + 1) % step else sparse for i in c.layers()])


def _deepseek(c: Config) -> Model:
    """DeepSeek-V2 and V3, Kimi K2: latent attention, the first layers dense."""
    latent = LatentAttention(
        heads=c.size("num_attention_heads"),
        kv_rank=c.size("kv_lora_rank"),
        q_rank=c.optional("q_lora_rank"),
        nope_dim=c.size("qk_nope_head_dim"),
        rope_dim=c.size("qk_rope_head_dim"),
        value_dim=c.size("v_head_dim"),
    )
    sparse = Block(count=1, latent=latent, experts=_deepseek_experts(c))
    dense = Block(count=1, latent=latent, dense=_mlp(c))
    first, step = c.optional("first_k_dense_replace") or 0, c.size("moe_layer_freq", 1)
    blocks = [dense if i < first or i % step else sparse for i in c.layers()]
    return _model(c, blocks, prediction=[sparse] * _prediction_layers(c))


def _deepseek_experts(c: Config) -> Experts:
    width = c.size("moe_intermediate_size")
    return Experts(
        count=c.size("n_routed_experts"),
        top_k=c.size("num_experts_per_tok"),
        width=width,
        shared_width=width * (c.optional("n_shared_experts") or 0),
        router_bias=c.text("topk_method", "") == "noaux_tc",
    )


def _prediction_layers(c: Config) -> int:
    key = "num_nextn_predict_layers"
    return len(c.layers(key)) if c.optional(key) else 0


def _deepseek_v4(c: Config) -> Model:
    window = CompressedAttention(
        heads=c.size("num_attention_heads"),
        head_dim=c.size("head_dim"),
        q_rank=c.size("q_lora_rank"),
        out_groups=c.size("o_groups"),
        out_rank=c.size("o_lora_rank"),
        window=c.size("sliding_window"),
    )
    indexed = replace(
        window,
        ratio=4,
        index_heads=c.size("index_n_heads"),
        index_dim=c.size("index_head_dim"),
        index_top_k=c.size("index_topk"),
    )
    kinds = {0: window, 4: indexed, 128: replace(window, ratio=128)}
    ratios, layers = c.items("compress_ratios"), c.layers()
    if len(ratios) < len(layers) or any(ratio not in (0, 4, 128) for ratio in ratios):
        raise InputError(f"compress_ratios must give 0, 4 or 128 for each of {len(layers)} layers")
    experts = _deepseek_experts(c)
    blocks = [Block(count=1, compressed=kinds[ratios[i]], experts=experts) for i in layers]
    ahead = Block(count=1, compressed=window, experts=experts)
    return _model(c, blocks, prediction=[ahead] * _prediction_layers(c))


def _nemotron_h(c: Config) -> Model:
    """Mamba, attention, MLP and experts as layers of their own, in the order of a pattern."""
    pattern = _pattern(c, "layers_block_type", "hybrid_override_pattern")
    if not pattern:
        raise InputError("the key hybrid_override_pattern or layers_block_type is missing")
    if c.optional("num_hidden_layers") not in (None, len(pattern)):
        raise InputError(f"num_hidden_layers does not match a pattern of {len(pattern)} layers")
    ahead = _pattern(c, "mtp_layers_block_type", "mtp_hybrid_override_pattern")
    prediction = [_nemotron_layer(c, kind) for kind in ahead] * _prediction_layers(c)
    return _model(c, [_nemotron_layer(c, kind) for kind in pattern], prediction=prediction)


def _pattern(c: Config, listed: str, written: str) -> list[Any]:
    """Layer kinds, from a list of words or from a text with one letter each."""
    letters = c.text(written, "")
    if len(letters) > LAYERS:
        raise InputError(f"{written} is longer than {LAYERS} layers")
    return c.items(listed) or list(letters)


def _nemotron_layer(c: Config, kind: Any) -> Block:
    layer = Block(count=1, norms=1)
    if kind in ("M", "mamba"):
        return replace(layer, state_space=_mamba(c))
    if kind in ("*", "attention"):
        return replace(layer, attention=_attention(c))
    if kind in ("-", "mlp"):
        return replace(layer, dense=_mlp(c, gated=False))
    if kind in ("E", "moe"):
        return replace(layer, experts=_nemotron_experts(c))
    raise InputError(f"a layer of kind {short(kind)} is not one of M, *, -, E")


def _mamba(c: Config) -> StateSpace:
    return StateSpace(
        heads=c.size("mamba_num_heads"),
        head_dim=c.size("mamba_head_dim"),
        groups=c.size("n_groups"),
        state=c.size("ssm_state_size"),
        conv=c.size("conv_kernel"),
        conv_bias=c.flag("use_conv_bias"),
        bias=c.flag("use_bias") or c.flag("mamba_proj_bias"),
    )


def _nemotron_experts(c: Config) -> Experts:
    shared = c.optional("moe_shared_expert_intermediate_size") or 0
    return replace(
        _deepseek_experts(c),
        gated=False,
        shared_width=shared * (c.optional("n_shared_experts") or 0),
        router_bias=True,
        latent=c.optional("moe_latent_size"),
    )


def _gpt_block(hidden: int, heads: int, kv_heads: int, width: int, *, bias: bool) -> Block:
    """The block of GPT-2 and its kin: two matrices after attention, biases all or none."""
    attention = Attention(
        heads=heads, kv_heads=kv_heads, head_dim=hidden // heads, qkv_bias=bias, out_bias=bias
    )
    return Block(count=1, attention=attention, dense=Dense(width=width, gated=False, bias=bias))


def _gpt2(c: Config) -> Model:
    hidden, heads, positions = c.size("n_embd"), c.size("n_head"), c.size("n_positions")
    block = _gpt_block(hidden, heads, heads, c.size("n_inner", 4 * hidden), bias=True)
    blocks = [block] * len(c.layers("n_layer"))
    return _model(c, blocks, hidden=hidden, norm="layer", positions=positions, context=positions)


def _bloom(c: Config) -> Model:
    hidden, heads = c.size("hidden_size|n_embed"), c.size("n_head|num_attention_heads")
    block = _gpt_block(hidden, heads, heads, 4 * hidden, bias=True)
    blocks = [block] * len(c.layers("n_layer|num_hidden_layers"))
    context = c.optional("seq_length")
    return _model(c, blocks, hidden=hidden, norm="layer", embedding_norm=True, context=context)


def _opt(c: Config) -> Model:
    hidden, heads = c.size("hidden_size"), c.size("num_attention_heads")
    if c.size("word_embed_proj_dim", hidden) != hidden or not c.flag("do_layer_norm_before"):
        raise InputError(
            "an OPT with a projected embedding or post-norm (opt-350m) is not supported"
        )
    block = _gpt_block(hidden, heads, heads, c.size("ffn_dim"), bias=c.flag("enable_bias"))
    positions = c.size("max_position_embeddings") + 2
    return _model(c, [block] * len(c.layers()), norm="layer", positions=positions)


def _mpt(c: Config) -> Model:
    hidden, heads, context = c.size("d_model"), c.size("n_heads"), c.size("max_seq_len")
    attention, bias = c.inside("attn_config"), not c.flag("no_bias")
    width = hidden * c.size("expansion_ratio")
    block = _gpt_block(hidden, heads, attention.size("kv_n_heads", heads), width, bias=bias)
    learned = c.flag("learned_pos_emb") and not (attention.flag("alibi") or attention.flag("rope"))
    return _model(
        c,
        [block] * len(c.layers("n_layers")),
        hidden=hidden,
        norm="layer" if bias else "layer-nobias",
        positions=context if learned else 0,
        context=context,
    )


def _falcon(c: Config) -> Model:
    hidden, heads = c.size("hidden_size"), c.size("num_attention_heads|n_head")
    grouped, shared_norm = c.flag("new_decoder_architecture"), c.flag("parallel_attn")
    kv_heads = 1 if c.flag("multi_query") else heads
    if grouped:
        kv_heads, shared_norm = c.size("num_kv_heads|n_head_kv", heads), False
    width = c.size("ffn_hidden_size", 4 * hidden)
    block = _gpt_block(hidden, heads, kv_heads, width, bias=c.flag("bias"))
    block = replace(block, norms=1 if shared_norm else 2)
    return _model(c, [block] * len(c.layers("num_hidden_layers|n_layer")), norm="layer")


_TIED = {"tie_word_embeddings": True}
_GEMMA3 = _TIED | {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}
_LLAMA4 = {"interleave_moe_layer_step": 1, "attention_chunk_size": 8192}
_FAMILIES: dict[str, tuple[Callable[[Config], Model], dict[str, Any]]] = {
    "gpt2": (_gpt2, _TIED),
    "llama": (_llama, {}),
    "mistral": (_mistral, {}),
    "mixtral": (_mixtral, {}),
    "qwen2": (_qwen2, {}),
    "qwen2_moe": (_qwen2_moe, {}),
    "qwen3": (_qwen3, {}),
    "qwen3_moe": (_qwen3_moe, {}),
    "deepseek_v2": (_deepseek, {}),
    "deepseek_v3": (_deepseek, {}),
    "deepseek_v4": (_deepseek_v4, {}),
    "kimi_k2": (_deepseek, {}),
    "gpt_oss": (_gpt_oss, {}),
    "gemma": (_llama, _TIED),
    "gemma2": (_gemma2, _TIED | {"sliding_window": 4096}),
    "gemma3": (_gemma3, _GEMMA3),
    "gemma3_text": (_gemma3, _GEMMA3),
    "bloom": (_bloom, _TIED),
    "opt": (_opt, _TIED | {"enable_bias": True, "do_layer_norm_before": True}),
    "mpt": (_mpt, _TIED | {"expansion_ratio": 4, "learned_pos_emb": True}),
    "olmo": (_olmo, {}),
    "olmo2": (_olmo2, {}),
    "falcon": (_falcon, _TIED | {"multi_query": True, "parallel_attn": True}),
    "grok-1": (_grok, _TIED),
    "llama4": (_llama4, _LLAMA4),
    "llama4_text": (_llama4, _LLAMA4),
    "nemotron": (_nemotron, {}),
    "nemotron_h": (_nemotron_h, {"conv_kernel": 4, "use_conv_bias": True}),
}
"""Reader of each `model_type`, and what its class assumes for absent keys."""
