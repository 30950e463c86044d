"""The shape of a model: enough to count its parameters, FLOPs, bytes and messages.

A model is an embedding, groups of equal blocks, a final norm and a head. A block is one mixer
(softmax, latent or compressed attention, or a state-space mixer) and one feed-forward part (dense
or experts); either may be absent, as in hybrids that alternate them. Groups stand in the order in
which they first occur; kinds that alternate are listed once each, with their totals.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from computeflow.catalog.rows import CatalogRow
from computeflow.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Softmax attention with `kv_heads` key/value heads (all: MHA, one: MQA, between: GQA)."""

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    """Norm weights on queries and keys: one vector per head dimension, or over all heads."""
    sinks: bool = False
    """One learned logit per head (gpt-oss)."""
    window: int | None = None
    """Tokens a query sees; None: all before it."""
    chunk: int | None = None
    """Attention within chunks of this many tokens (Llama 4)."""

    def __post_init__(self) -> None:
        if min(self.heads, self.kv_heads, self.head_dim) < 1 or self.heads % self.kv_heads:
            raise InputError(
                f"attention: {self.heads} heads over {self.kv_heads} key/value heads of "
                f"{self.head_dim} do not make whole groups"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434)."""

    heads: int
    kv_rank: int
    q_rank: int | None = None
    """None: queries are projected in one step."""
    nope_dim: int
    rope_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        _check_sizes("latent attention", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """One key/value head, over a window and over compressed tokens (DeepSeek-V4)."""

    heads: int
    head_dim: int
    q_rank: int
    out_groups: int
    out_rank: int
    """The output is projected down to this within each of `out_groups` groups of heads, then up."""
    window: int
    ratio: int | None = None
    """Tokens that share one compressed entry; None: the block sees its window only."""
    index_heads: int | None = None
    index_dim: int | None = None
    index_top_k: int | None = None
    """Compressed entries that the indexer picks per query; None: no indexer, all are attended."""

    def __post_init__(self) -> None:
        _check_sizes("compressed attention", self)
        index = (self.index_heads, self.index_dim, self.index_top_k)
        if any(size is None for size in index) and any(size is not None for size in index):
            raise InputError("compressed attention: an indexer has heads, a dimension and a top k")
        if index[0] is not None and self.ratio is None:
            raise InputError("compressed attention: an indexer needs a compression ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace:
    """A Mamba-2 mixer: `heads` of `head_dim`, `groups` of B/C with `state` each."""

    heads: int
    head_dim: int
    groups: int
    state: int
    conv: int = 4
    conv_bias: bool = True
    bias: bool = False

    def __post_init__(self) -> None:
        _check_sizes("state space", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    width: int
    gated: bool = True
    """Three matrices (SwiGLU, GeGLU) or two."""
    bias: bool = False

    def __post_init__(self) -> None:
        _check_sizes("dense", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    count: int
    top_k: int
    width: int
    """Width of one routed expert."""
    gated: bool = True
    bias: bool = False
    shared_width: int = 0
    """Width of all shared experts together."""
    shared_gate: bool = False
    """One more row that gates the shared expert (Qwen2-MoE)."""
    router_bias: bool = False
    latent: int | None = None
    """Routed experts work in this narrower dimension (Nemotron 3 Super)."""

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.count:
            raise InputError(f"experts: top {self.top_k} of {self.count} is impossible")
        if min(self.width, self.latent or 1) < 1 or self.shared_width < 0:
            raise InputError("experts: every width must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    count: int
    attention: Attention | None = None
    latent: LatentAttention | None = None
    compressed: CompressedAttention | None = None
    state_space: StateSpace | None = None
    dense: Dense | None = None
    experts: Experts | None = None
    norms: int = 2
    """Norm layers over the hidden dimension in one block."""

    def __post_init__(self) -> None:
        mixers = (self.attention, self.latent, self.compressed, self.state_space)
        if self.count < 1 or sum(m is not None for m in mixers) > 1:
            raise InputError("a block has at most one mixer and is there at least once")
        if self.dense is not None and self.experts is not None:
            raise InputError("a block has a dense feed-forward part or experts, not both")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(CatalogRow):
    kind: ClassVar[str] = "model"
    family: str
    hidden: int
    vocab: int
    """Rows of the embedding as published; padding for tensor parallelism is the stack's matter."""
    blocks: tuple[Block, ...]
    tied: bool = False
    """The head reuses the embedding."""
    positions: int = 0
    """Learned position embeddings."""
    norm: Literal["rms", "layer", "layer-nobias", "none"] = "rms"
    embedding_norm: bool = False
    final_norm: bool = True
    head_bias: bool = False
    prediction_blocks: tuple[Block, ...] = ()
    """Multi-token-prediction modules, trained beside the model and not in its parameter count."""
    context: int | None = None
    """The longest sequence it was trained on."""
    published_parameters: str | None = None
    """As printed by the source ("8030261248", "671B"): its last digit says how exact it is."""
    published_active: str | None = None
    active_embedding: bool = True
    """Whether the published active count includes the input embedding."""

    def __post_init__(self) -> None:
        super(Model, self).__post_init__()
        self._check_names("family")
        if min(self.hidden, self.vocab) < 1 or not self.blocks:
            raise InputError(f"{self.name}: hidden, vocab and blocks must be there")
        for printed in (self.published_parameters, self.published_active):
            if printed is not None:
                printed_range(printed)

    @property
    def layers(self) -> int:
        return sum(block.count for block in self.blocks)


_PRINTED = re.compile(r"(\d+)(?:\.(\d+))?([MBT]?)")
_SCALES = {"": 1.0, "M": 1e6, "B": 1e9, "T": 1e12}


def printed_range(text: str) -> tuple[float, float]:
    """Range of a printed count: "37B" is 36.5e9 to 37.5e9, half a unit of its last digit."""
    match = _PRINTED.fullmatch(text)
    if not match:
        raise InputError(f"{text!r} is not a printed count (8030261248, 37B, 1.04T)")
    whole, decimals, suffix = match.groups(default="")
    scale = _SCALES[suffix]
    half = 0.5 * 10.0 ** -len(decimals)
    value = float(f"{whole}.{decimals or 0}")
    return (value - half) * scale, (value + half) * scale


def _check_sizes(what: str, part: object) -> None:
    """Every number that is there must be positive."""
    for name in part.__dataclass_fields__:  # type: ignore[attr-defined]
        value = getattr(part, name)
        if value is not None and not isinstance(value, bool) and value < 1:
            raise InputError(f"{what}: {name} = {value} must be positive")
