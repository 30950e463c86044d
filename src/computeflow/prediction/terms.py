"""The terms of a step: seconds of one layer, one message, one update, on arrays.

Each formula names what it counts and neglects. Rates are sustained ones: the best matmul that anybody
published for the device, times what the power limit leaves of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.cluster.machine import MOST_TIERS
from computeflow.prediction.batch import GENERATIONS, Batch
from computeflow.prediction.kinds import Floats, Kind, Local, local_experts, matrices
from computeflow.prediction.parameters import Parameters
from computeflow.prediction.stack import ATTENTIONS, GRAPHS, KERNELS

_MEMORY_EFFICIENCY = 0.88
"""Of the rated bandwidth, that large copies reach: 4.23 of 4.8 TB/s on our H200."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """FLOP/s and bytes/s of every row's device."""

    clock: Floats
    """Sustained over rated clock, power cap included: what `compute.clock` is made of."""
    matmul: Floats
    linear: Floats
    """Of the block's linear layers: fp8 where the job asks for it."""
    attention_forward: Floats
    """At a head dimension of 128."""
    attention_backward: Floats
    memory: Floats


def rates(b: Batch, p: Parameters) -> Rates:
    clock = _by_generation(b, p) * b.power_share ** p["power_exponent"]
    mature = 1 + p["immaturity"] * np.exp(-b.age_years / 0.8)
    full = np.where(b.element_bytes > 2, b.peak_flops / b.peak_bf16, 1.0)
    matmul = b.matmul_ceiling * clock / mature * full
    low = matmul * b.peak_flops / b.peak_bf16 * b.low_rate
    ampere, hopper = (b.generation == GENERATIONS.index(g) for g in ("ampere", "hopper"))
    first, second = (b.attention == ATTENTIONS.index(kind) for kind in ("flash1", "flash2"))
    kernel = np.where(ampere, p["attention_ampere"], 1.0)
    kernel = np.where(hopper & (first | second), p["attention_old_hopper"], kernel)
    kernel = np.where(first, p["attention_first"], 1.0) * kernel
    base = b.attention_peak * clock / 0.87 * kernel / mature
    return Rates(
        clock=clock,
        matmul=matmul,
        linear=np.where(b.low_precision > 0, low, matmul),
        attention_forward=base * p["attention_forward"],
        attention_backward=base * p["attention_backward"],
        memory=b.hbm_bytes_per_second * _MEMORY_EFFICIENCY,
    )


def _by_generation(b: Batch, p: Parameters) -> Floats:
    names = ["ampere", "hopper", "blackwell", "trainium", "other", "other"]
    values = np.array([p[f"sustained_{name}"] for name in names])
    return np.asarray(values[b.generation.astype(int)])


def _matmul_seconds(
    m: Floats, n: Floats, k: Floats, rate: Floats, depth: Floats, p: Parameters
) -> Floats:
    """2mnk FLOPs at a rate that falls for a short inner dimension and for a small output.

    It takes 2mnk / rate x (1 + depth / k) x (1 + output_half / (m n)). Such ramps fit measured tables
    better than counting waves of tiles: libraries choose tiles to avoid partial waves.
    """
    return np.where(n * k > 0, 2 / rate * (k + depth) * (m * n + p["output_half"]), 0.0)


def tokens(b: Batch) -> Floats:
    """Of one micro-batch on one device."""
    return b.micro_batch * b.seq_len / b.cp


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Seconds of one layer and one micro-batch on one device, before communication."""

    linear_forward: Floats
    linear_backward: Floats
    routed: Floats
    """Of the linear parts, both ways: the routed experts."""
    attention_forward: Floats
    attention_backward: Floats
    other_forward: Floats
    """Memory-bound: norms, activations, residuals, casts."""
    other_backward: Floats

    @property
    def forward(self) -> Floats:
        return self.linear_forward + self.attention_forward + self.other_forward

    @property
    def backward(self) -> Floats:
        return self.linear_backward + self.attention_backward + self.other_backward


def layer(b: Batch, k: Kind, p: Parameters, r: Rates) -> Layer:
    """One block of a kind."""
    t = tokens(b)
    depth = p["depth_half"] * np.where(b.low_precision > 0, 1.5, 1.0)  # a faster unit ramps longer
    forward, backward, weight = np.zeros(len(b)), np.zeros(len(b)), np.zeros(len(b))
    for matrix in matrices(k, b.hidden, b.tp):
        n, m = matrix.rows, matrix.columns
        forward += _matmul_seconds(t, n, m, r.linear, depth, p)
        backward += _matmul_seconds(t, m, n, r.linear, depth, p)
        weight += _matmul_seconds(n, m, t, r.linear, depth, p)
    local = local_experts(k, b.tp, b.ep, b.etp)
    routed_forward, routed_backward, routed_weight = _grouped(b, k, local, p, r, depth)
    trained = 1 - b.frozen * (1 - b.trained_share)  # frozen weights get no gradients
    weight = (weight + routed_weight) * trained
    split = np.where(b.sequence_parallel > 0, b.tp, 1.0)
    inner = k.ffn / b.tp + local.routed * local.width
    moved = t * (b.hidden / split + 0.6 * inner) * p["elementwise_bytes"]
    moved = moved * b.element_bytes / 2 * _by_kernels(b.kernels, p, "elementwise") / r.memory
    copies = t * local.routed * k.expert_hidden
    sorting = np.where(b.dedup > 0, p["permute_fused"], 1.0) * p["permute_bytes"]
    sorting = copies * sorting / r.memory
    scan = t * k.scan_width / b.tp * p["scan_bytes"] / r.memory
    cast = p["cast_bytes"] * b.cast_share * _by_kernels(b.casts, p, "cast")
    wide = t * (2 * b.hidden + 2 * inner) + 2 * copies
    casts = b.low_precision * wide * cast / r.memory
    # bf16 gradients added to an fp32 buffer and cleared, every micro-batch; else the matmul adds
    summed = (2 * b.grad_bytes + 2 * b.half_grad_bytes) * np.where(b.half_grad_bytes > 0, 1.0, 0.0)
    summed = (kind_parameters(b, k) + local.weights) * b.trained_share * summed / r.memory
    attention = _attention(b, k, p, r)
    return Layer(
        linear_forward=forward + routed_forward,
        linear_backward=backward + routed_backward + weight,
        routed=routed_forward + routed_backward + routed_weight * trained,
        attention_forward=attention[0],
        attention_backward=attention[1],
        other_forward=0.4 * moved + casts + sorting + scan,
        other_backward=0.6 * moved + 2 * casts + summed + sorting + 2 * scan,
    )


def _grouped(
    b: Batch, k: Kind, local: Local, p: Parameters, r: Rates, depth: Floats
) -> tuple[Floats, Floats, Floats]:
    """The routed experts: one matmul for each, so the ramps count for each."""
    if not (k.experts > 0).any():
        return np.zeros(len(b)), np.zeros(len(b)), np.zeros(len(b))
    there = k.experts > 0
    each = tokens(b) * local.routed / np.where(there, local.experts, 1.0)
    rate = r.linear * p["grouped_rate"]
    forward, backward, weight = np.zeros(len(b)), np.zeros(len(b)), np.zeros(len(b))
    for n, m in ((k.gates * local.width, k.expert_hidden), (k.expert_hidden, local.width)):
        forward += _matmul_seconds(each, n, m, rate, depth, p)
        backward += _matmul_seconds(each, m, n, rate, depth, p)
        weight += _matmul_seconds(n, m, each, rate, depth, p)
    return local.experts * forward, local.experts * backward, local.experts * weight


def host_share(b: Batch, k: Kind, p: Parameters) -> Floats:
    """Host time of a block over that of an eager one on a host of the H100's time."""
    old = np.where(b.generation == GENERATIONS.index("ampere"), p["host_ampere"], 1.0)
    more = np.where((b.attention == 0) & ~_fused_softmax(b, k), p["host_softmax"], 1.0)
    routing = np.where(b.graphs > 0, p["host_moe_graph"], p["host_moe"])
    more = more * np.where(k.experts > 0, routing, 1.0)
    launched = np.where(b.graphs == GRAPHS.index("step"), p["host_graph"], 1.0)
    return old * more * launched * _by_kernels(b.kernels, p, "host")


def _by_kernels(kinds: Floats, p: Parameters, what: str) -> Floats:
    values = np.array([1.0, *(p[f"{what}_{kind}"] for kind in KERNELS[1:])])
    return np.asarray(values[kinds.astype(int)])


def _attention(b: Batch, k: Kind, p: Parameters, r: Rates) -> tuple[Floats, Floats]:
    """Forward and backward of softmax attention, by the stack's kernel."""
    fused = _fused_attention(b, k, p, r)
    with_kernel = b.attention > 0
    if with_kernel.all():
        return fused
    unfused = _unfused_attention(b, k, p, r)
    return (
        np.where(with_kernel, fused[0], unfused[0]),
        np.where(with_kernel, fused[1], unfused[1]),
    )


def head_dim_rate(head_dim: Floats) -> Floats:
    """Fused attention's rate over that at 128: 392 of 541 TFLOP/s at 64 on our H200; sizes between
    multiples of 32 are padded.
    """
    padded = 32 * np.ceil(np.maximum(head_dim, 1.0) / 32)
    return np.asarray(np.where(head_dim <= 64, 0.73, 1.0) * np.maximum(head_dim, 1.0) / padded)


def _fused_attention(b: Batch, k: Kind, p: Parameters, r: Rates) -> tuple[Floats, Floats]:
    flops = 2 * tokens(b) * k.context * k.heads * (k.qk_dim + k.value_dim) / b.tp
    flops = flops / head_dim_rate(k.qk_dim)
    forward = flops / r.attention_forward * (1 + p["attention_ramp_forward"] / b.seq_len)
    backward = 2 * flops / r.attention_backward * (1 + p["attention_ramp_backward"] / b.seq_len)
    return forward, backward


def _unfused_attention(b: Batch, k: Kind, p: Parameters, r: Rates) -> tuple[Floats, Floats]:
    """The whole square in two matmuls, and the scores through memory several times.

    Head dimensions that are no multiple of 8 fall off the fast kernels (BLOOM's 108: fourfold).
    """
    scores = tokens(b) * b.seq_len * k.heads / b.tp
    misaligned = np.where(k.qk_dim % 8 != 0, 4.0, 1.0)
    products = 2 * scores * (k.qk_dim + k.value_dim) / (0.7 * r.matmul) * misaligned
    moved = p["softmax_bytes"] * np.where(_fused_softmax(b, k), 1.0, p["softmax_unfused"])
    softmax = scores * moved / r.memory
    return products + softmax, 2 * products + p["softmax_backward"] * softmax


def _fused_softmax(b: Batch, k: Kind) -> NDArray[np.bool_]:
    """Megatron's softmax kernel takes sequences x heads in multiples of four only."""
    return np.asarray(b.micro_batch * k.heads / b.tp % 4 == 0)


def head(b: Batch, p: Parameters, r: Rates) -> Floats:
    """Logits and loss of one micro-batch, forward and backward, on the last stage."""
    t, vocab = tokens(b), b.vocab / b.tp
    depth = np.full(len(b), p["depth_half"])
    products = (
        _matmul_seconds(t, vocab, b.hidden, r.matmul, depth, p)
        + _matmul_seconds(t, b.hidden, vocab, r.matmul, depth, p)
        + (1 - b.frozen) * _matmul_seconds(vocab, b.hidden, t, r.matmul, depth, p)
    )
    return b.losses * (products + t * vocab * p["logit_bytes"] / r.memory)


def group_speed(b: Batch, p: Parameters, ranks: Floats, stride: Floats) -> Floats:
    """Bytes/s of a ring over `ranks` devices that lie `stride` apart: its narrowest crossing.

    Where the ring leaves a unit of some tier, its members in that unit share the way out: each brings
    its own NIC.
    """
    speed = np.full(len(b), np.inf)
    unit = np.ones(len(b))
    for tier in range(MOST_TIERS):
        efficiency = p["link_efficiency"] if tier == 0 else p["nic_efficiency"]
        members = np.minimum(np.maximum(unit / stride, 1.0), ranks)
        way_out = members * b.tier_bytes_per_second[:, tier] * efficiency
        speed = np.where(ranks * stride > unit, np.minimum(speed, way_out), speed)
        unit = b.tier_devices[:, tier]
    return speed


def pair_speed(b: Batch, p: Parameters, ranks: Floats, stride: Floats) -> Floats:
    """Bytes/s between neighbours of `ranks` devices that lie `stride` apart: of the slowest pair.

    Where the whole row does not fit into a unit, some pair of neighbours is in two.
    """
    speed, unit = np.full(len(b), np.inf), np.ones(len(b))
    for tier in range(MOST_TIERS):
        efficiency = p["link_efficiency"] if tier == 0 else p["nic_efficiency"]
        crosses = ranks * stride > unit
        speed = np.where(crosses, b.tier_bytes_per_second[:, tier] * efficiency, speed)
        unit = b.tier_devices[:, tier]
    return speed


def _all_to_all_seconds(
    b: Batch, p: Parameters, size: Floats, ranks: Floats, stride: Floats, copies: Floats
) -> Floats:
    """Of sending `size` bytes from every device, evenly to all of `ranks`; the slowest tier decides.

    `copies` of each token leave. A dispatcher that sends a token once to each node of the network,
    and spreads it there, sends fewer: as many as different nodes are drawn.
    """
    seconds, unit = np.zeros(len(b)), np.ones(len(b))
    for tier in range(MOST_TIERS):
        efficiency = p["link_efficiency"] if tier == 0 else p["nic_efficiency"]
        inside = np.minimum(np.maximum(unit / stride, 1.0), ranks)
        units = ranks / inside
        share = (ranks - inside) / ranks
        if tier > 0:
            drawn = (units - 1) * (1 - (1 - 1 / units) ** copies)
            fewer = drawn / np.maximum(copies * share, 1e-9)
            share = share * np.where((b.dedup > 0) & (units > 1), np.minimum(fewer, 1.0), 1.0)
        speed = b.tier_bytes_per_second[:, tier] * efficiency
        seconds = np.maximum(seconds, size * share / speed)
        unit = b.tier_devices[:, tier]
    return np.where(ranks > 1, seconds + p["ep_latency"], 0.0)


def routed_bytes(b: Batch, k: Kind) -> Floats:
    """Copies of one block's tokens for their experts, before they leave; each rank sends its part."""
    size = b.element_bytes * tokens(b) / b.tp * k.top_k * k.expert_hidden
    return np.where(k.experts > 0, size, 0.0)


def expert_parallel(b: Batch, k: Kind, p: Parameters) -> Floats:
    """Exposed seconds of sending tokens to their experts and back, one block in one direction."""
    if not (k.experts > 0).any():
        return np.zeros(len(b))
    size = routed_bytes(b, k)
    once = _all_to_all_seconds(b, p, size, b.ep, b.etp, k.top_k)
    gathered = (b.etp - 1) * size / group_speed(b, p, b.etp, np.ones(len(b)))
    seconds = 2 * (once + np.where(b.etp > 1, gathered, 0.0))
    return np.where(k.experts > 0, seconds * (1 - p["ep_hidden"] * b.ep_overlap), 0.0)


def tensor_bytes(b: Batch) -> Floats:
    """That a rank sends in one collective of a micro-batch's activations."""
    size = b.element_bytes * tokens(b) * b.hidden
    # Transformer Engine's overlap gathers fp8 operands, and scatters bf16 results
    size = size * np.where((b.low_precision > 0) & (b.tp_overlap > 0), 0.75, 1.0)
    return 2 * (b.tp - 1) / b.tp * size


def tensor_collectives(k: Kind) -> Floats:
    """Of one block in one direction: one for its mixer, one for its feed-forward part."""
    mixers = ((k.heads > 0) | (k.mixer_weights > 0)).astype(np.float64)
    return mixers + ((k.ffn > 0) | (k.experts > 0))


def tensor_parallel(b: Batch, k: Kind, p: Parameters) -> Floats:
    """Exposed seconds of one block's collectives in one direction."""
    speed = group_speed(b, p, b.tp, np.ones(len(b)))
    once = tensor_bytes(b) / speed + p["tp_latency"] * np.log2(b.tp)
    return tensor_collectives(k) * once * (1 - p["tp_hidden"] * b.tp_overlap)


def ring_bytes(b: Batch, k: Kind) -> Floats:
    """Keys and values of one block, once around the context-parallel ring."""
    heads = np.maximum(k.kv_heads / b.tp, 1.0) * (k.qk_dim + k.value_dim)
    width = np.where(k.kv_rank > 0, k.kv_rank + k.rope_dim, heads)
    return (b.cp - 1) * b.element_bytes * tokens(b) * width


def exchange_bytes(b: Batch, k: Kind) -> Floats:
    """Heads for tokens before attention (queries, keys, values), tokens for heads after (outputs);
    a rank's own part included.
    """
    parts = (k.heads + k.kv_heads) * (k.qk_dim + k.value_dim) / b.tp
    return b.element_bytes * tokens(b) * parts


def stage_bytes(b: Batch) -> Floats:
    """Activations of one micro-batch to the next stage; their gradients back are as many."""
    return b.element_bytes * tokens(b) * b.hidden / b.tp


def context_parallel(b: Batch, k: Kind, p: Parameters) -> Floats:
    """Exposed seconds of one block forward: keys and values around the ring, half of it hidden; or
    two exchanges of heads for tokens (arXiv:2309.14509), which nothing hides.
    """
    if not (b.cp > 1).any():
        return np.zeros(len(b))
    ring = 0.5 * ring_bytes(b, k) / group_speed(b, p, b.cp, b.tp)
    if not (b.context_exchange > 0).any():
        return ring
    whole = _all_to_all_seconds(b, p, exchange_bytes(b, k), b.cp, b.tp, np.ones(len(b)))
    return np.where(b.context_exchange > 0, whole, ring)


def shards(b: Batch) -> Floats:
    """Ranks over which fully sharded weights are spread: one replica's data and context ranks."""
    return b.dp * b.cp / b.replicas


def expert_replicas(b: Batch) -> Floats:
    """Devices that hold the same experts."""
    return b.tp * b.cp * b.dp / (b.ep * b.etp)


def kind_parameters(b: Batch, k: Kind) -> Floats:
    """Parameters of one block on one tensor-parallel rank, without its routed experts."""
    return sum((x.weights for x in matrices(k, b.hidden, b.tp)), start=np.zeros(len(b)))


def layer_parameters(b: Batch) -> Floats:
    """The same of the mean block."""
    return (
        sum((k.count * kind_parameters(b, k) for k in b.present), start=np.zeros(len(b))) / b.layers
    )


def expert_parameters(b: Batch) -> Floats:
    """Parameters of the mean block's routed experts on one device."""
    total = np.zeros(len(b))
    for k in b.present:
        total += k.count * local_experts(k, b.tp, b.ep, b.etp).weights
    return total / b.layers


def gathered_bytes(b: Batch) -> Floats:
    """Per parameter that a fully sharded pass gathers: as it is computed with, or as it is kept."""
    return np.where(b.element_bytes > 2, b.element_bytes, np.minimum(b.param_bytes, 2.0))


def end_parameters(b: Batch) -> Floats:
    """Parameters of embedding and head that the heaviest stage has, on one rank."""
    return np.where(b.pp > 1, 1.0, 2.0 - b.tied) * b.vocab * b.hidden / b.tp


def stage_parameters(b: Batch) -> Floats:
    """Parameters of the heaviest pipeline stage on one rank, without routed experts."""
    return b.layers / b.pp * layer_parameters(b) + end_parameters(b)
