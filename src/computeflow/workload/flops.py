"""Model FLOPs per token: what the mathematics needs, however it is laid out or recomputed.

A matmul weight costs 2 FLOPs forward and 4 backward for every token. Attention between tokens is
counted with its causal mask: a query at position i sees i keys, so half of the square, less where a
window cuts it. The PaLM convention (arXiv:2204.02311, appendix B) counts the whole square; both are
given. Norms, activations, softmax and routing are not counted, as is usual.
"""

from __future__ import annotations

from dataclasses import dataclass

from computeflow.catalog.models import Block, CompressedAttention, Model, StateSpace
from computeflow.catalog.parameters import count_block


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFlops:
    """FLOPs of one token, forward and backward together."""

    matmul: float
    """6 for every weight that multiplies the token: blocks and head, not embeddings and norms."""
    attention: float
    """Scores and values, the causal half."""
    attention_full: float
    """Scores and values without the causal mask."""

    @property
    def total(self) -> float:
        return self.matmul + self.attention

    @property
    def palm(self) -> float:
        return self.matmul + self.attention_full


def flops_per_token(model: Model, seq_len: int, *, prediction: bool = False) -> TokenFlops:
    """Model FLOPs of a token; `prediction`: multi-token-prediction modules and their heads included."""
    further = model.prediction_blocks if prediction else ()
    weights = (1 + len(further)) * model.hidden * model.vocab  # the head multiplies, tied or not
    causal = full = 0.0
    for block in (*model.blocks, *further):
        weights += block.count * matmul_weights(model, block)
        seen, square = mixing_flops(block, seq_len)
        causal += block.count * seen
        full += block.count * square
    return TokenFlops(matmul=6.0 * weights, attention=3.0 * causal, attention_full=3.0 * full)


def matmul_weights(model: Model, block: Block) -> int:
    """Weights of one block that one token is multiplied with."""
    count = count_block(model, block)
    vectors = 0
    if block.attention is not None:
        a = block.attention
        vectors += a.qkv_bias * (a.heads + 2 * a.kv_heads) * a.head_dim + a.out_bias * model.hidden
        vectors += {"none": 0, "head": 2, "full": a.heads + a.kv_heads}[a.qk_norm] * a.head_dim
        vectors += a.sinks * a.heads
    if block.dense is not None and block.dense.bias:
        vectors += (1 + block.dense.gated) * block.dense.width + model.hidden
    return count.active - count.norms - vectors


def mixing_flops(block: Block, seq_len: int) -> tuple[float, float]:
    """Forward FLOPs of one token's attention to others in one block: causal, and the full square."""
    if block.attention is not None:
        a = block.attention
        pair = 2.0 * a.heads * 2 * a.head_dim
        return pair * mean_context(seq_len, a.window or a.chunk), pair * seq_len
    if block.latent is not None:
        m = block.latent
        pair = 2.0 * m.heads * (m.nope_dim + m.rope_dim + m.value_dim)
        return pair * mean_context(seq_len, None), pair * seq_len
    if block.compressed is not None:
        return _compressed(block.compressed, seq_len)
    if block.state_space is not None:
        flops = _state_space(block.state_space)
        return flops, flops
    return 0.0, 0.0


def mean_context(seq_len: int, window: int | None) -> float:
    """Keys that a query sees on average: half the sequence, or a window once it is full."""
    if window is None or window >= seq_len:
        return seq_len / 2
    return window - window * window / (2 * seq_len)


def _compressed(a: CompressedAttention, seq_len: int) -> tuple[float, float]:
    """A window, and the compressed entries that are attended: all, or those the indexer picks."""
    pair = 2.0 * a.heads * 2 * a.head_dim
    seen = mean_context(seq_len, a.window)
    if a.ratio is not None:
        entries = seq_len / a.ratio / 2
        seen += entries if a.index_top_k is None else min(entries, a.index_top_k)
        if a.index_heads is not None and a.index_dim is not None:
            return pair * seen + 2.0 * a.index_heads * a.index_dim * entries, pair * 2 * seen
    return pair * seen, pair * 2 * seen


def _state_space(s: StateSpace) -> float:
    """Mamba-2 by its recurrence (arXiv:2405.21060): update the state, read it, per head and channel."""
    return 2.0 * 2 * s.heads * s.head_dim * s.state
