"""Bytes on one device at its fullest moment, by owner, for one pipeline stage or for the fullest.

A stage owns layers, and the embedding or the head; `activations` lists what every layer keeps for the
backward pass. A step is looked at in four moments, because not everything is held at once: the loss,
the backward pass of the first layer it meets, that of the last, and the update. Start with `memory`.

Neglected: norms' weights and biases, padding of the vocabulary, fragmentation (`RESERVE` says what
the allocator holds beyond what is in use).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from computeflow.prediction import weights
from computeflow.prediction.activations import bytes_per_token
from computeflow.prediction.blocks import Floats, local_experts
from computeflow.prediction.step_inputs import StepInputs
from computeflow.workload.layout import SCHEDULES

OWNERS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "buffers",
    "overhead",
)
MOMENTS = ("the loss", "the backward pass", "the end of the backward pass", "the update")
WORKSPACE_BYTES = 0.074e9
"""Workspace inside the allocator, mostly of matmul libraries: median of what our H200 runs
that are not held out have beyond the lists."""
CONTEXT_BYTES, OLD_CONTEXT_BYTES = 1.0e9, 1.65e9
"""Outside the allocator: context, kernels, communicators. Before kernels were loaded lazily (2023):
1573 MiB, as BigScience measured it on an A100 (tr11-176B-ml/chronicles-prequel.md)."""
HEADROOM = 0.92
"""Share of a device's memory that may be filled: the allocator reserves 5 to 17 % in our runs."""
RESERVE = {"none": 1.055, "selective": 1.107, "full": 1.174}
"""Reserved over allocated memory: medians of our H200 runs that are not held out (31, 2 and 6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedMemory:
    by_owner: dict[str, Floats]
    """Bytes on the device at the fullest moment."""
    host: Floats
    """Bytes for the device in its host's memory."""
    disk: Floats
    """Bytes for it on disk."""
    moments: Floats
    """The fullest moment, as an index into `MOMENTS`."""
    stage: Floats
    """The pipeline stage it is about."""

    @property
    def bytes(self) -> Floats:
        return np.asarray(sum(self.by_owner.values()))

    @property
    def allocated(self) -> Floats:
        """Bytes that the framework's allocator has given out: all but the overhead."""
        return np.asarray(sum(v for name, v in self.by_owner.items() if name != "overhead"))

    def moment(self, row: int = 0) -> str:
        return MOMENTS[int(self.moments[row])]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWeights:
    """Parameters and activations of one pipeline stage, on one tensor-parallel rank."""

    layers: Floats
    layer_parameters: Floats
    expert_parameters: Floats
    """Parameters of one layer's routed experts; spread and copied otherwise than the rest."""
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
        """Parameters without routed experts."""
        return self.layers * self.layer_parameters + self.end_parameters

    @property
    def all_experts(self) -> Floats:
        return self.layers * self.expert_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerActivations:
    """Bytes of one layer for each token of a micro-batch, on one tensor-parallel rank."""

    kept: Floats
    working: Floats
    """What working on it backward adds: the rest of the layer's list where it is computed again, and
    gradients of the feed-forward width and of the residual stream, in bf16."""


def memory(b: StepInputs) -> PredictedMemory:
    """Memory of the fullest stage of every row.

    The first stage holds the most micro-batches, the embedding and no fewer layers than any other;
    the last holds the loss; where stages are cut by cost, the second may have a layer more. No other
    stage can be the fullest.
    """
    layer = _layer_activations(b)
    best = stage_memory(b, np.zeros(len(b)), layer)
    if (b.pp > 1).any():
        for stage in (np.minimum(1.0, b.pp - 1), b.pp - 1):
            best = _larger(best, stage_memory(b, stage, layer))
    return best


def _larger(first: PredictedMemory, second: PredictedMemory) -> PredictedMemory:
    more = second.bytes > first.bytes
    if not more.any():
        return first
    return PredictedMemory(
        by_owner={n: np.where(more, second.by_owner[n], v) for n, v in first.by_owner.items()},
        host=np.where(more, second.host, first.host),
        disk=np.where(more, second.disk, first.disk),
        moments=np.where(more, second.moments, first.moments),
        stage=np.where(more, second.stage, first.stage),
    )


def stage_memory(
    b: StepInputs, stage: Floats, layer: LayerActivations | None = None
) -> PredictedMemory:
    """Memory of the given stage of every row, at that stage's fullest moment. `layer` is the same
    for all stages: whoever asks for several may compute it once.
    """
    share = share_of(b, stage)
    optimizer, split = _optimizer(b, share)
    weights, gathered = _weights(b, share)
    gradients, held_gradients, last_gradients, reduced = _gradients(b, share, split)
    layer = layer or _layer_activations(b)
    one_layer, working = _tokens(b) * layer.kept, _tokens(b) * layer.working
    kept = _activations(b, share, layer)
    twice = 1 + (b.schedule == SCHEDULES.index("dualpipe"))  # a device holds two stages' weights
    weights, gradients, held_gradients, last_gradients, optimizer = (
        twice * x for x in (weights, gradients, held_gradients, last_gradients, optimizer)
    )
    few = np.minimum(2 * one_layer, kept)  # one on its way out or in, one worked on
    moved = b.offload_activations * (kept - few)
    kept = kept - moved
    moved_state = b.offload_state * optimizer
    moved_weights = b.offload_weights * weights
    away = moved_state + moved_weights
    logits = share.last * _tokens(b) * b.vocab / b.tp * b.logit_bytes / b.loss_chunks
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
        "weights": weights - moved_weights,
        "gradients": at["gradients"],
        "optimizer": optimizer - moved_state,
        "activations": at["activations"],
        "logits": at["logits"],
        "buffers": at["buffers"] + WORKSPACE_BYTES,
        "overhead": np.where(old, OLD_CONTEXT_BYTES, CONTEXT_BYTES),
    }
    return PredictedMemory(
        by_owner=owners,
        host=moved + np.where(b.offload_disk > 0, 0.0, away),
        disk=np.where(b.offload_disk > 0, away, 0.0),
        moments=fullest.astype(float),
        stage=np.asarray(stage, float),
    )


def share_of(b: StepInputs, stage: Floats) -> StageWeights:
    first, last = stage == 0, stage == b.pp - 1
    layer = np.maximum(weights.layer_parameters(b), 1.0)
    end = b.vocab * b.hidden / b.tp
    one_copy = (b.tied > 0) & (b.pp == 1)  # two stages cannot share a tensor
    return StageWeights(
        layers=_layers(b, stage, end / layer),
        layer_parameters=layer,
        expert_parameters=weights.expert_parameters(b),
        embedding_parameters=np.where(first, end, 0.0),
        head_parameters=np.where(last & ~one_copy, end, 0.0),
        last=last.astype(np.float64),
        in_flight=_in_flight(b, stage),
    )


def _layers(b: StepInputs, stage: Floats, head_cost: Floats) -> Floats:
    """Layers of a stage: as even as can be, the larger first; or by cost, with the head counted.

    By cost, the layer that crosses a stage's share still belongs to it (nanotron, models/base.py).
    """
    whole, rest = b.layers // b.pp, b.layers % b.pp
    even = whole + (stage < rest)
    per_stage = (b.layers + head_cost) / b.pp
    upto = np.minimum(np.floor((stage + 1) * per_stage) + 1, b.layers)
    before = np.where(stage > 0, np.minimum(np.floor(stage * per_stage) + 1, b.layers), 0.0)
    return np.where((b.balances_head > 0) & (b.pp > 1), upto - before, even)


def _in_flight(b: StepInputs, stage: Floats) -> Floats:
    """Micro-batches held at once: 1F1B, and Megatron's warm-up of the interleaved schedule.

    Interleaved, a stage runs 2 (pp - stage - 1) + (vp - 1) pp chunks ahead, and one more.
    """
    plain = np.minimum(b.pp - stage, b.micro_batches)
    chunks = 2 * (b.pp - stage - 1) + (b.vp - 1) * b.pp + 1
    interleaved = np.minimum(chunks, b.micro_batches * b.vp) / b.vp
    both_ways = np.minimum(b.pp + 1, b.micro_batches)  # DualPipe: arXiv:2412.19437, table 2
    held = np.where(b.vp > 1, interleaved, plain)
    return np.where(b.schedule == SCHEDULES.index("dualpipe"), both_ways, held)


def _tokens(b: StepInputs) -> Floats:
    return b.micro_batch * b.seq_len / b.cp


def _shards(b: StepInputs) -> Floats:
    return np.where(b.sharded > 0, weights.shards(b), 1.0)


def _expert_shards(b: StepInputs) -> Floats:
    return np.where(b.sharded > 0, weights.expert_replicas(b), 1.0)


def _weights(b: StepInputs, share: StageWeights) -> tuple[Floats, Floats]:
    """Weights, and what is gathered or cast of them during a pass.

    Sharded, fp32 weights are the ones kept (in the optimizer's state), and two layers and an end are
    gathered in bf16; with a pipeline all of the stage, since gathering for every micro-batch would
    cost too much (torchtitan does not reshard then).
    """
    sharded = b.sharded > 0
    in_state = sharded & (b.master_bytes > 0) & (b.offload_state == 0) & (b.frozen == 0)
    own = np.where(in_state, 0.0, b.param_bytes) * share.parameters
    end = np.maximum(share.embedding_parameters, share.head_parameters)
    some = np.minimum(2 * share.layer_parameters + end, share.parameters)
    some = some + np.minimum(2.0, share.layers) * share.expert_parameters
    gathered = np.where(b.pp > 1, share.parameters + share.all_experts, some)
    gathered = gathered * np.maximum(b.element_bytes, 2.0)
    matrices = share.layers * share.layer_parameters + share.head_parameters + share.all_experts
    experts = share.all_experts * np.where(in_state, 0.0, b.param_bytes / _expert_shards(b))
    return own / _shards(b) + experts, np.where(sharded, gathered, matrices * b.cast_bytes)


def _gradients(
    b: StepInputs, share: StageWeights, split: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Gradients after the backward pass, held through it, at the update; buffers of the reduction.

    Held: buffers that stay, and everything once a second micro-batch adds to it. bf16 gradients
    beside an fp32 buffer stay where they are reduced themselves (buckets of DistributedDataParallel;
    DeepSpeed, from zero2 on a shard of them), else until they are added up. With FSDP and a pipeline,
    whole fp32 gradients stay until the last micro-batch; else one layer is reduced at a time.
    """
    piped = (b.sharded > 0) & (b.pp > 1)
    spread = (b.splits_gradients > 0) | (b.zero2 > 0)
    shards = np.where(spread, split, np.where(piped, 1.0, _shards(b)))
    expert_shards = np.where(
        spread, weights.expert_replicas(b), np.where(piped, 1.0, _expert_shards(b))
    )
    held_once = share.parameters / shards + share.all_experts / expert_shards
    buffer = held_once * b.grad_bytes * b.trained_share
    cut = np.where((b.sharded > 0) & ~piped | (b.zero2 > 0), weights.shards(b), 1.0)
    half = (share.parameters + share.all_experts) / cut * b.half_grad_bytes * b.trained_share
    buckets = b.dp * b.cp > 1
    half_stays = np.where((b.splits_gradients > 0) | buckets, half, 0.0)
    stays = (b.keeps_gradients > 0) | (b.micro_batches > 1)
    held = np.where(stays, buffer, 0.0) + half_stays
    one_layer = share.layer_parameters + share.expert_parameters
    reduced = one_layer * (2 + b.grad_bytes) * b.trained_share
    reduced = np.where(b.sharded > 0, reduced, 0.0)
    return buffer + half, held, buffer + half_stays, np.where(piped, 0.0, reduced)


def _optimizer(b: StepInputs, share: StageWeights) -> tuple[Floats, Floats]:
    """Bytes of the optimizer's state, and over how many ranks it is split."""
    split = np.where(b.sharded + b.split_optimizer > 0, weights.shards(b), 1.0)
    layers = share.layers * share.layer_parameters * b.state_bytes
    whole = b.split_optimizer + b.sharded == 0
    experts = share.all_experts * b.state_bytes / np.where(whole, 1.0, weights.expert_replicas(b))
    ends = np.where(b.frozen > 0, 0.0, share.end_parameters * b.end_state_bytes)
    state = (layers * b.trained_share + ends) / split + experts * b.trained_share
    return state, split


def _widest(b: StepInputs) -> Floats:
    """The feed-forward part whose gradients are the widest, per token, with all its matrices."""
    width = np.zeros(len(b))
    for k in b.present:
        local = local_experts(k, b.tp, b.ep, b.etp)
        inner = k.ffn / b.tp + local.routed * local.width
        width = np.maximum(width, (k.gates + 1) * inner + 2 * local.routed * k.expert_hidden)
    return width


def _layer_activations(b: StepInputs) -> LayerActivations:
    kept, whole = bytes_per_token(b)
    gradients = b.element_bytes * (_widest(b) + b.hidden / _sequence_split(b))
    return LayerActivations(kept=kept, working=whole - kept + gradients)


def _activations(b: StepInputs, share: StageWeights, layer: LayerActivations) -> Floats:
    """Kept by the whole stage."""
    split = _sequence_split(b)
    final_norm = share.last * b.element_bytes / 2 * (2 + b.residual_bytes) * b.hidden / split
    return _tokens(b) * (share.layers * share.in_flight * layer.kept + final_norm)


def _sequence_split(b: StepInputs) -> Floats:
    return np.where(b.sequence_parallel > 0, b.tp, 1.0)
