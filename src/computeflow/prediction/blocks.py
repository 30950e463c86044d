"""Kinds of blocks as a struct of arrays: a model is a few kinds, each there so many times.

`kinds_of` turns a model into its kinds; `matrices` says what a token is multiplied with on one
tensor-parallel rank, `LocalExperts` what the routed experts of a kind are on one device.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from computeflow.catalog.models import Block, Model
from computeflow.catalog.parameters import count_block
from computeflow.errors import InputError
from computeflow.workload.flops import matmul_weights, mean_context, mixing_flops

Floats = NDArray[np.float64]
MAX_KINDS = 4
"""Kinds of blocks in one model, its prediction module included; the catalog's have up to three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockArrays:
    """A kind of block in every row, one array for each field; zero where a row has no such part."""

    count: Floats
    heads: Floats
    """Heads of softmax attention."""
    kv_heads: Floats
    qk_dim: Floats
    value_dim: Floats
    context: Floats
    """Keys that a query sees on average."""
    q_rank: Floats
    """Width that the queries of latent attention go through; 0: in one step."""
    kv_rank: Floats
    """Width that the keys and values of latent attention go through; 0: no latent attention."""
    rope_dim: Floats
    mixer_weights: Floats
    """Weights of mixers that are counted as a whole (state space, compressed attention)."""
    scan_width: Floats
    """Width that the recurrence of a state-space mixer runs over, per token."""
    ffn: Floats
    """Width of the dense feed-forward part, or of the shared experts."""
    gates: Floats
    """Matrices into the feed-forward width: 2 if gated, else 1."""
    experts: Floats
    top_k: Floats
    expert_width: Floats
    expert_hidden: Floats
    """Dimension that the routed experts work in."""

    def __len__(self) -> int:
        return len(self.count)


def kinds_of(model: Model, seq_len: int, *, prediction: bool) -> list[dict[str, float]]:
    """The kinds of a model, as numbers; with its multi-token-prediction modules on request."""
    blocks = [*model.blocks, *(model.prediction_blocks if prediction else ())]
    if len(blocks) > MAX_KINDS:
        raise InputError(f"{model.name}: {len(blocks)} kinds of blocks; at most {MAX_KINDS}")
    return [_kind(model, block, seq_len) for block in blocks]


def absent() -> dict[str, float]:
    """A kind that is not there."""
    return dict.fromkeys((f.name for f in fields(BlockArrays)), 0.0)


def _kind(model: Model, block: Block, seq_len: int) -> dict[str, float]:
    kind = absent() | {"count": float(block.count)} | _mixer(model, block, seq_len)
    if block.dense is not None:
        kind |= {"ffn": block.dense.width, "gates": 2.0 if block.dense.gated else 1.0}
    if block.experts is not None:
        e = block.experts
        kind |= {
            "ffn": e.shared_width,
            "gates": 2.0 if e.gated else 1.0,
            "experts": e.count,
            "top_k": e.top_k,
            "expert_width": e.width,
            "expert_hidden": e.latent or model.hidden,
        }
    return kind


def _mixer(model: Model, block: Block, seq_len: int) -> dict[str, float]:
    if block.attention is not None:
        a = block.attention
        return {
            "heads": a.heads,
            "kv_heads": a.kv_heads,
            "qk_dim": a.head_dim,
            "value_dim": a.head_dim,
            "context": mean_context(seq_len, a.window or a.chunk),
        }
    if block.latent is not None:
        m = block.latent
        return {
            "heads": m.heads,
            "kv_heads": m.heads,
            "qk_dim": m.nope_dim + m.rope_dim,
            "value_dim": m.value_dim,
            "context": mean_context(seq_len, None),
            "q_rank": m.q_rank or 0,
            "kv_rank": m.kv_rank,
            "rope_dim": m.rope_dim,
        }
    if block.compressed is not None:
        c = block.compressed
        pair = 2.0 * c.heads * 2 * c.head_dim
        return {
            "heads": c.heads,
            "kv_heads": 1,
            "qk_dim": c.head_dim,
            "value_dim": c.head_dim,
            "context": mixing_flops(block, seq_len)[0] / pair,
            "mixer_weights": _mixer_weights(model, block),
        }
    if block.state_space is not None:
        s = block.state_space
        return {
            "mixer_weights": _mixer_weights(model, block),
            "scan_width": s.heads * s.head_dim + 2 * s.groups * s.state,
        }
    return {}


def _mixer_weights(model: Model, block: Block) -> float:
    """Weights of a block's mixer alone that a token is multiplied with."""
    rest = count_block(model, block).active - _without_mixer(model, block)
    return float(min(rest, matmul_weights(model, block)))


def _without_mixer(model: Model, block: Block) -> int:
    if block.dense is None and block.experts is None:
        return count_block(model, block).norms
    bare = Block(count=1, dense=block.dense, experts=block.experts, norms=block.norms)
    return count_block(model, bare).active


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Rows and columns on one tensor-parallel rank; a token is multiplied with it once."""

    rows: Floats
    columns: Floats

    @property
    def weights(self) -> Floats:
        return self.rows * self.columns


def matrices(k: BlockArrays, hidden: Floats, tp: Floats) -> list[Matrix]:
    """Matrices of the mixer, the dense feed-forward part and the shared experts."""
    plain = (k.heads > 0) & (k.kv_rank == 0) & (k.mixer_weights == 0)
    kv = np.maximum(k.kv_heads / tp, 1.0)  # a head is not cut: with fewer than tp, ranks share
    sizes = [
        (np.where(plain, k.qk_dim * k.heads / tp + (k.qk_dim + k.value_dim) * kv, 0.0), hidden),
        (hidden, np.where(plain, k.heads * k.value_dim / tp, 0.0)),
        (k.gates * k.ffn / tp, hidden),
        (hidden, k.ffn / tp),
    ]
    if (k.kv_rank > 0).any():
        sizes += _latent(k, hidden, tp)
    if (k.mixer_weights > 0).any():
        sizes.append((k.mixer_weights / hidden / tp, hidden))
    return [Matrix(rows=rows, columns=columns) for rows, columns in sizes]


def _latent(k: BlockArrays, hidden: Floats, tp: Floats) -> list[tuple[Floats, Floats]]:
    """Matrices of latent attention: down on every rank alike, up by heads (arXiv:2405.04434)."""
    latent = k.kv_rank > 0
    nope = k.qk_dim - k.rope_dim
    return [
        (np.where(latent, k.kv_rank + k.rope_dim, 0.0), hidden),
        (np.where(latent, k.heads * (nope + k.value_dim) / tp, 0.0), k.kv_rank),
        (np.where(latent, k.q_rank, 0.0), hidden),
        (np.where(latent, k.heads * k.qk_dim / tp, 0.0), np.where(k.q_rank > 0, k.q_rank, hidden)),
        (np.where(latent, hidden, 0.0), k.heads * k.value_dim / tp),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalExperts:
    """The routed experts of a kind on one device."""

    experts: Floats
    width: Floats
    """Width of one expert, after expert tensor parallelism."""
    routed: Floats
    """Copies of tokens that it works on, per token of its micro-batch."""
    weights: Floats
    """Parameters of all of them."""


def local_experts(k: BlockArrays, tp: Floats, ep: Floats, etp: Floats) -> LocalExperts:
    """The experts of one device under a balanced load: it gets as many copies as it sends.

    With expert tensor parallelism like tensor parallelism every rank works on all tokens with part
    of the width; without, on its part of the tokens with all of the width.
    """
    experts, width = k.experts / ep, k.expert_width / etp
    return LocalExperts(
        experts=experts,
        width=width,
        routed=k.top_k * etp / tp,
        weights=experts * (k.gates + 1) * k.expert_hidden * width,
    )
