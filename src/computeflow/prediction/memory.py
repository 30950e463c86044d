"""Bytes on one device at its fullest moment, by owner, for one pipeline stage or for the fullest.

A stage owns layers, and the embedding or the head; `saved` lists what every layer keeps for the
backward pass. A step is looked at in four moments, because not everything is held at once: the loss,
the backward pass of the first layer it meets, that of the last, and the update. Start with `memory`.

Neglected: norms' weights and biases, padding of the vocabulary, fragmentation (`RESERVE` says what
the allocator holds beyond what is in use).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from computeflow.prediction import terms
from computeflow.prediction.batch import Batch, Floats
from computeflow.prediction.saved import bytes_per_token

OWNERS = (
    "weights", "gradients", "optimizer", "activations", "logits", "buffers", "overhead",
)  # fmt: skip
MOMENTS = ("the loss", "the backward pass", "the end of the backward pass", "the update")
WORKSPACE_BYTES = 0.074e9
"""Inside the allocator, mostly of matmul libraries: median of what our H200 runs that are not held out
have beyond the lists."""
CONTEXT_BYTES, OLD_CONTEXT_BYTES = 1.0e9, 1.65e9
"""Outside the allocator: context, kernels, communicators. Before kernels were loaded lazily (2023):
1573 MiB, as BigScience measured it on an A100 (tr11-176B-ml/chronicles-prequel.md)."""
RESERVE = {"none": 1.055, "selective": 1.107, "full": 1.174}
"""Reserved over allocated memory: medians of our H200 runs that are not held out (31, 2 and 6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    by_owner: dict[str, Floats]
    """What is held at the fullest moment."""
    moments: Floats
    """That moment, as an index into `MOMENTS`."""
    stage: Floats
    """The pipeline stage it is about."""

    @property
    def bytes(self) -> Floats:
        return np.asarray(sum(self.by_owner.values()))

    @property
    def allocated(self) -> Floats:
        """What the framework's allocator has given out: all but the overhead."""
        return np.asarray(sum(v for name, v in self.by_owner.items() if name != "overhead"))

    def moment(self, row: int = 0) -> str:
        return MOMENTS[int(self.moments[row])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one pipeline stage owns, on one tensor-parallel rank."""

    layers: Floats
    layer_parameters: Floats
    embedding_parameters: Floats
    head_parameters: Floats
    last: Floats
    """1 on the stage with the loss."""
    in_flight: Floats
    """Micro-batches whose activations all layers of the stage hold; a chunk counts as its share."""

    @property
    def end_parameters(self) -> Floats:
        return self.embedding_parameters + self.head_parameters

    @property
    def parameters(self) -> Floats:
        return self.layers * self.layer_parameters + self.end_parameters


def memory(b: Batch) -> Memory:
    """Of the fullest stage of every row.

    The first stage holds the most micro-batches, the embedding and no fewer layers than any other;
    the last holds the loss; where stages are cut by cost, the second may have a layer more. No other
    stage can be the fullest.
    """
    best = stage_memory(b, np.zeros(len(b)))
    if (b.pp > 1).any():
        for stage in (np.minimum(1.0, b.pp - 1), b.pp - 1):
            best = _larger(best, stage_memory(b, stage))
    return best


def _larger(one: Memory, other: Memory) -> Memory:
    more = other.bytes > one.bytes
    if not more.any():
        return one
    return Memory(
        by_owner={n: np.where(more, other.by_owner[n], v) for n, v in one.by_owner.items()},
        moments=np.where(more, other.moments, one.moments),
        stage=np.where(more, other.stage, one.stage),
    )


def stage_memory(b: Batch, stage: Floats) -> Memory:
    """Of the given stage of every row, at that stage's fullest moment."""
    share = share_of(b, stage)
    optimizer, split = _optimizer(b, share)
    weights, gathered = _weights(b, share)
    gradients, held_gradients, last_gradients, reduced = _gradients(b, share, split)
    kept, one_layer, working = _activations(b, share)
    logits = share.last * _tokens(b) * b.vocab / b.tp * b.logit_bytes
    ended = share.embedding_parameters + share.layer_parameters
    unfinished = ended * (b.grad_bytes + b.half_grad_bytes) / _shards(b)
    zero = np.zeros(len(b))
    varying = {  # one entry per moment
        "gradients": [
            held_gradients,
            held_gradients,
            np.maximum(gradients - unfinished, held_gradients),
            last_gradients,
        ],
        "activations": [kept, kept + working, one_layer + working, zero],
        "logits": [logits, zero, zero, zero],
        "buffers": [
            gathered,
            gathered + reduced,
            gathered + reduced,
            zero,
        ],
    }
    totals = np.array([sum(entries[i] for entries in varying.values()) for i in range(4)])
    fullest = totals.argmax(axis=0)
    at = {n: np.choose(fullest, entries) for n, entries in varying.items()}
    old = b.year < 2023
    owners = {
        "weights": weights,
        "gradients": at["gradients"],
        "optimizer": optimizer,
        "activations": at["activations"],
        "logits": at["logits"],
        "buffers": at["buffers"] + WORKSPACE_BYTES,
        "overhead": np.where(old, OLD_CONTEXT_BYTES, CONTEXT_BYTES),
    }
    return Memory(by_owner=owners, moments=fullest.astype(float), stage=np.asarray(stage, float))


def share_of(b: Batch, stage: Floats) -> Share:
    first, last = stage == 0, stage == b.pp - 1
    layer = terms.layer_parameters(b)
    end = b.vocab * b.hidden / b.tp
    one_copy = (b.tied > 0) & (b.pp == 1)  # two stages cannot share a tensor
    return Share(
        layers=_layers(b, stage, end / layer),
        layer_parameters=layer,
        embedding_parameters=np.where(first, end, 0.0),
        head_parameters=np.where(last & ~one_copy, end, 0.0),
        last=last.astype(np.float64),
        in_flight=_in_flight(b, stage),
    )


def _layers(b: Batch, stage: Floats, head_cost: Floats) -> Floats:
    """Layers of a stage: as even as can be, the larger first; or by cost, with the head counted.

    By cost, the layer that crosses a stage's share still belongs to it (nanotron, models/base.py).
    """
    whole, rest = b.layers // b.pp, b.layers % b.pp
    even = whole + (stage < rest)
    per_stage = (b.layers + head_cost) / b.pp
    upto = np.minimum(np.floor((stage + 1) * per_stage) + 1, b.layers)
    before = np.where(stage > 0, np.minimum(np.floor(stage * per_stage) + 1, b.layers), 0.0)
    return np.where((b.balances_head > 0) & (b.pp > 1), upto - before, even)


def _in_flight(b: Batch, stage: Floats) -> Floats:
    """Micro-batches held at once: 1F1B, and Megatron's warm-up of the interleaved schedule.

    Interleaved, a stage runs 2 (pp - stage - 1) + (vp - 1) pp chunks ahead, and one more.
    """
    plain = np.minimum(b.pp - stage, b.micro_batches)
    chunks = 2 * (b.pp - stage - 1) + (b.vp - 1) * b.pp + 1
    interleaved = np.minimum(chunks, b.micro_batches * b.vp) / b.vp
    return np.where(b.vp > 1, interleaved, plain)


def _tokens(b: Batch) -> Floats:
    return b.micro_batch * b.seq_len / b.cp


def _shards(b: Batch) -> Floats:
    return np.where(b.sharded > 0, b.dp * b.cp, 1.0)


def _weights(b: Batch, share: Share) -> tuple[Floats, Floats]:
    """Weights, and what is gathered or cast of them during a pass.

    Sharded, fp32 weights are the ones kept (in the optimizer's state), and two layers and an end are
    gathered in bf16; with a pipeline all of the stage, since gathering for every micro-batch would
    cost too much (torchtitan does not reshard then).
    """
    sharded = b.sharded > 0
    own = np.where(sharded & (b.master_bytes > 0), 0.0, b.param_bytes) * share.parameters
    end = np.maximum(share.embedding_parameters, share.head_parameters)
    some = np.minimum(2 * share.layer_parameters + end, share.parameters)
    gathered = np.where(b.pp > 1, share.parameters, some) * 2.0
    matrices = share.layers * share.layer_parameters + share.head_parameters
    return own / _shards(b), np.where(sharded, gathered, matrices * b.cast_bytes)


def _gradients(b: Batch, share: Share, split: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Gradients after the backward pass, held through it, at the update; buffers of the reduction.

    Held: buffers that stay, and everything once a second micro-batch adds to it. bf16 gradients
    beside an fp32 buffer stay where they are reduced themselves (buckets of DistributedDataParallel;
    DeepSpeed), else until they are added up. With FSDP and a pipeline, whole fp32 gradients stay
    until the last micro-batch; else one layer is reduced at a time.
    """
    piped = (b.sharded > 0) & (b.pp > 1)
    shards = np.where(b.splits_gradients > 0, split, np.where(piped, 1.0, _shards(b)))
    buffer = share.parameters * b.grad_bytes / shards
    half = share.parameters * b.half_grad_bytes
    buckets = b.dp * b.cp > 1
    half_stays = np.where((b.splits_gradients > 0) | buckets, half, 0.0)
    stays = (b.keeps_gradients > 0) | (b.micro_batches > 1)
    held = np.where(stays, buffer, 0.0) + half_stays
    reduced = np.where(b.sharded > 0, share.layer_parameters * (2 + b.grad_bytes), 0.0)
    return buffer + half, held, buffer + half_stays, np.where(piped, 0.0, reduced)


def _optimizer(b: Batch, share: Share) -> tuple[Floats, Floats]:
    """Its state, and over how many ranks it is split."""
    split = np.where(b.split_optimizer + b.sharded > 0, b.dp * b.cp, 1.0)
    layers = share.layers * share.layer_parameters * b.state_bytes
    return (layers + share.end_parameters * b.end_state_bytes) / split, split


def _activations(b: Batch, share: Share) -> tuple[Floats, Floats, Floats]:
    """Kept by the whole stage, by one layer, and what working on one layer backward adds to it.

    Working: the rest of the layer's list where it is computed again, and gradients of the
    feed-forward width and of the residual stream, in bf16.
    """
    kept, whole = bytes_per_token(b)
    tokens = _tokens(b)
    split = np.where(b.sequence_parallel > 0, b.tp, 1.0)
    gradients = b.element_bytes * ((b.gates + 1) * b.ffn / b.tp + b.hidden / split)
    final_norm = share.last * b.element_bytes / 2 * (2 + b.residual_bytes) * b.hidden / split
    held = tokens * (share.layers * share.in_flight * kept + final_norm)
    return held, tokens * kept, tokens * (whole - kept + gradients)
