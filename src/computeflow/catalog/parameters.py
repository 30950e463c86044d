"""How many parameters a model has, and how many of them work on one token.

Start with `count_parameters`. `count_block` gives one block, for code that needs the parts: FLOPs
per token, bytes per layer, what expert parallelism divides. Counted are the tensors of the
published checkpoint: matrices, biases, norm weights, router biases. Not counted: multi-token
prediction modules (`Model.prediction_blocks`) and buffers such as rotary tables.
"""

from __future__ import annotations

from dataclasses import dataclass

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

_NORM_VECTORS = {"rms": 1, "layer": 2, "layer-nobias": 1, "none": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCount:
    """Parameters of one block; `active_experts` are those of `experts` that one token uses."""

    attention: int
    state_space: int
    dense: int
    experts: int
    active_experts: int
    router: int
    norms: int

    @property
    def total(self) -> int:
        return (
            self.attention + self.state_space + self.dense + self.experts + self.router + self.norms
        )

    @property
    def active(self) -> int:
        return self.total - self.experts + self.active_experts


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCount:
    """Parameters of a model by part. A tied head is 0: it reuses `embedding`."""

    embedding: int
    positions: int
    attention: int
    state_space: int
    dense: int
    experts: int
    """Routed and shared experts, with the projections into and out of their latent dimension."""
    router: int
    norms: int
    head: int
    total: int
    active: int
    """Used per token: the top k experts, the shared ones, all that is dense."""


def count_parameters(model: Model) -> ParameterCount:
    counts = [(block.count, count_block(model, block)) for block in model.blocks]

    def summed(part: str) -> int:
        return sum(times * int(getattr(count, part)) for times, count in counts)

    embedding = model.vocab * model.hidden
    positions = model.positions * model.hidden
    head = (0 if model.tied else embedding) + (model.vocab if model.head_bias else 0)
    outer_norms = (model.embedding_norm + model.final_norm) * _norm_parameters(model)
    outside = embedding + positions + head + outer_norms
    unused = 0 if model.tied or model.active_embedding else embedding
    return ParameterCount(
        embedding=embedding,
        positions=positions,
        attention=summed("attention"),
        state_space=summed("state_space"),
        dense=summed("dense"),
        experts=summed("experts"),
        router=summed("router"),
        norms=summed("norms") + outer_norms,
        head=head,
        total=summed("total") + outside,
        active=summed("active") + outside - unused,
    )


def count_block(model: Model, block: Block) -> BlockCount:
    """One block of `model`, whatever its `count`."""
    hidden, experts = model.hidden, block.experts
    return BlockCount(
        attention=_attention(hidden, block),
        state_space=_state_space(hidden, block.state_space) if block.state_space else 0,
        dense=_dense(hidden, block.dense) if block.dense else 0,
        experts=_experts(hidden, experts, experts.count) if experts else 0,
        active_experts=_experts(hidden, experts, experts.top_k) if experts else 0,
        router=_router(hidden, experts) if experts else 0,
        norms=block.norms * _norm_parameters(model),
    )


def _norm_parameters(model: Model) -> int:
    return _NORM_VECTORS[model.norm] * model.hidden


def _attention(hidden: int, block: Block) -> int:
    if block.attention:
        return _softmax_attention(hidden, block.attention)
    if block.latent:
        return _latent_attention(hidden, block.latent)
    if block.compressed:
        return _compressed_attention(hidden, block.compressed)
    return 0


def _softmax_attention(hidden: int, a: Attention) -> int:
    queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
    matrices = hidden * (queries + 2 * keys) + queries * hidden
    biases = a.qkv_bias * (queries + 2 * keys) + a.out_bias * hidden
    qk_norm = {"none": 0, "head": 2 * a.head_dim, "full": queries + keys}[a.qk_norm]
    return matrices + biases + qk_norm + a.sinks * a.heads


def _latent_attention(hidden: int, a: LatentAttention) -> int:
    """Parameters of the down and up projections with their norms, and of the output."""
    queries = a.heads * (a.nope_dim + a.rope_dim)
    query = hidden * queries if a.q_rank is None else _low_rank(hidden, a.q_rank, queries)
    down = hidden * (a.kv_rank + a.rope_dim) + a.kv_rank
    up = a.kv_rank * a.heads * (a.nope_dim + a.value_dim)
    return query + down + up + a.heads * a.value_dim * hidden


def _compressed_attention(hidden: int, a: CompressedAttention) -> int:
    """Low-rank queries, one key/value head, sinks, grouped low-rank output, compressor, indexer."""
    queries = a.heads * a.head_dim
    query = _low_rank(hidden, a.q_rank, queries)
    key_value = hidden * a.head_dim + a.head_dim
    output = queries * a.out_rank + a.out_groups * a.out_rank * hidden
    count = query + key_value + a.heads + output
    if a.ratio is None:
        return count
    if a.index_heads is None or a.index_dim is None:
        return count + _compressor(hidden, a.head_dim, a.ratio, overlap=1)
    return (
        count
        + _compressor(hidden, a.head_dim, a.ratio, overlap=2)
        + _compressor(hidden, a.index_dim, a.ratio, overlap=2)
        + a.q_rank * a.index_heads * a.index_dim
        + hidden * a.index_heads
    )


def _low_rank(inputs: int, rank: int, outputs: int) -> int:
    """Down, a norm, up."""
    return inputs * rank + rank + rank * outputs


def _compressor(hidden: int, dim: int, ratio: int, *, overlap: int) -> int:
    """Values and gates of the compressed entries, a bias per place in them, a norm.

    Entries that an indexer picks from overlap their neighbours, which makes them twice as wide.
    """
    width = overlap * dim
    return 2 * hidden * width + ratio * width + dim


def _state_space(hidden: int, s: StateSpace) -> int:
    """Mamba-2 (arXiv:2405.21060).

    One input projection for gate, x, B, C and dt; a convolution over x, B and C; A, D and the bias
    of dt per head; a gated norm; the output projection.
    """
    inner = s.heads * s.head_dim
    convolved = inner + 2 * s.groups * s.state
    projected = inner + convolved + s.heads
    matrices = hidden * projected + inner * hidden
    convolution = convolved * (s.conv + s.conv_bias)
    return matrices + convolution + 3 * s.heads + inner + s.bias * (projected + hidden)


def _dense(hidden: int, d: Dense) -> int:
    return _feed_forward(hidden, d.width, gated=d.gated, bias=d.bias)


def _experts(hidden: int, e: Experts, used: int) -> int:
    inside = e.latent or hidden
    routed = used * _feed_forward(inside, e.width, gated=e.gated, bias=e.bias)
    shared = _feed_forward(hidden, e.shared_width, gated=e.gated, bias=False)
    around = 2 * hidden * e.latent if e.latent else 0
    return routed + shared + around


def _router(hidden: int, e: Experts) -> int:
    return hidden * e.count + e.router_bias * e.count + e.shared_gate * hidden


def _feed_forward(hidden: int, width: int, *, gated: bool, bias: bool) -> int:
    inputs = 2 * width if gated else width
    return hidden * (inputs + width) + bias * (inputs + hidden)
