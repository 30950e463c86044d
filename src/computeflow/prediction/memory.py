"""Bytes on one device at its fullest moment, by owner, for the heaviest pipeline stage.

Weights, gradients and optimizer state follow from the sharding; activations are the tensors that the
backward pass keeps: per token and layer, in units of the hidden and of the feed-forward width. Not
counted: fragmentation and the allocator's reserve.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from computeflow.prediction import terms
from computeflow.prediction.batch import Batch, Floats

_OVERHEAD_BYTES = 1.0e9
"""Context, communication buffers and workspaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    by_owner: dict[str, Floats]
    """What is held at the fullest moment."""

    @property
    def bytes(self) -> Floats:
        return np.asarray(sum(self.by_owner.values()))


def memory(b: Batch) -> Memory:
    """Of every row.

    Gradients that are freed after the update meet either the activations (early in the backward
    pass) or nothing (at its end): the larger counts.
    """
    parameters = terms.stage_parameters(b)
    ranks = b.dp * b.cp
    shards = np.where(b.sharded > 0, ranks, 1.0)
    gathered = np.where(b.sharded > 0, 2 * terms.layer_parameters(b) * b.param_bytes, 0.0)
    split = np.where(b.split_optimizer + b.sharded > 0, ranks, 1.0)
    gradients = parameters * b.grad_bytes / shards
    activations, logits = _activations(b), _logits(b)
    together = (b.keeps_gradients > 0) | (b.micro_batches > 1)
    late = ~together & (gradients > activations + logits)
    return Memory(
        by_owner={
            "weights": parameters * b.param_bytes / shards + gathered,
            "gradients": np.where(together | late, gradients, 0.0),
            "optimizer": parameters * b.state_bytes / split,
            "activations": np.where(late, 0.0, activations),
            "logits": np.where(late, 0.0, logits),
            "overhead": np.full(len(b), _OVERHEAD_BYTES),
        }
    )


def _activations(b: Batch) -> Floats:
    """Kept by every layer of the stage, for every micro-batch in flight.

    Bytes per token, bf16. With fused kernels as arXiv:2205.05198 counts them: the two norms' inputs,
    the inputs of the three projections and the masks, 6 hidden widths of 2 bytes; queries, keys and
    values; gate, up and their product. Eager code keeps some results twice, compiled blocks
    recompute what is cheap. Full recomputation keeps the block's input.
    """
    tokens = b.micro_batch * b.seq_len / b.cp
    split = np.where(b.sequence_parallel > 0, b.tp, 1.0)
    kind = b.kernels.astype(int)
    wide = np.array([8.0, 6.0, 5.0, 5.0])[kind] * 2 / split
    inner = (b.heads + 2 * b.kv_heads) * b.head_dim * 2 / b.tp
    ffn = (np.array([2.0, 1.0, 1.0, 1.0])[kind] + b.gates) * 2 * b.ffn / b.tp
    every = wide * b.hidden + inner + ffn
    scores = np.where(b.attention == 0, 5.0 * b.heads * b.seq_len / b.tp, 0.0)
    selective = every - np.where(b.attention == 0, 0.0, 4.0 * b.hidden / split)
    kept = np.where(b.recompute_selective > 0, selective, every + scores)
    kept = np.where(b.recompute_full > 0, 2 * b.hidden / split, kept)
    working = np.where(b.recompute_full > 0, every, 0.0)  # one layer at a time, computed again
    working = working + np.where(b.recompute_full + b.recompute_selective > 0, scores, 0.0)
    in_flight = np.minimum(b.pp, b.micro_batches) * (1 + (b.vp > 1) * (b.pp - 1) / (b.pp * b.vp))
    return tokens * (b.layers / b.pp * in_flight * kept + working)


def _logits(b: Batch) -> Floats:
    """bf16 logits, their fp32 copy, and the gradient of both, at the moment of the loss."""
    return b.micro_batch * b.seq_len / b.cp * b.vocab / b.tp * (2 + 4 + 4)
