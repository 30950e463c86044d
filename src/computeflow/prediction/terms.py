"""The terms of a step: seconds of one layer, one message, one update, on arrays.

Each formula names what it counts and neglects. Rates are sustained ones: the best matmul that anybody
published for the device, times what the power limit leaves of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.cluster.machine import MOST_TIERS
from computeflow.prediction.batch import GENERATIONS, Batch, Floats
from computeflow.prediction.parameters import Parameters
from computeflow.prediction.stack import ATTENTIONS, KERNELS

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
    attention_backward: Floats
    memory: Floats


def rates(b: Batch, p: Parameters) -> Rates:
    clock = _by_generation(b, p) * b.power_share ** p["power_exponent"]
    mature = 1 + p["immaturity"] * np.exp(-b.age_years / 0.8)
    full = np.where(b.element_bytes > 2, b.peak_flops / b.peak_bf16, 1.0)
    matmul = b.matmul_ceiling * clock / mature * full
    fp8 = matmul * b.peak_flops / b.peak_bf16 * p["fp8_rate"]
    ampere, hopper = (b.generation == GENERATIONS.index(g) for g in ("ampere", "hopper"))
    first, second = (b.attention == ATTENTIONS.index(kind) for kind in ("flash1", "flash2"))
    kernel = np.where(ampere, p["attention_ampere"], 1.0)
    kernel = np.where(hopper & (first | second), p["attention_old_hopper"], kernel)
    kernel = np.where(first, p["attention_first"], 1.0) * kernel
    kernel = np.where(b.head_dim <= 64, 0.73, 1.0) * kernel  # 392 against 541 TFLOP/s, our H200
    kernel = b.head_dim / (32 * np.ceil(b.head_dim / 32)) * kernel  # sizes between are padded
    base = b.attention_peak * clock / 0.87 * kernel / mature
    return Rates(
        clock=clock,
        matmul=matmul,
        linear=np.where(b.low_precision > 0, fp8, matmul),
        attention_forward=base * p["attention_forward"],
        attention_backward=base * p["attention_backward"],
        memory=b.hbm_bytes_per_second * _MEMORY_EFFICIENCY,
    )


def _by_generation(b: Batch, p: Parameters) -> Floats:
    names = ["ampere", "hopper", "blackwell", "trainium", "other", "other"]
    values = np.array([p[f"sustained_{name}"] for name in names])
    return np.asarray(values[b.generation.astype(int)])


def matmul_seconds(
    m: Floats, n: Floats, k: Floats, rate: Floats, depth: Floats, p: Parameters
) -> Floats:
    """2mnk FLOPs at a rate that falls for a short inner dimension and for a small output.

    A ramp in both fits measured tables better than counting waves of tiles: libraries choose tiles to
    avoid partial waves.
    """
    return 2 * m * n * k / rate * (1 + depth / k) * (1 + p["output_half"] / (m * n))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Seconds of one layer and one micro-batch on one device, before communication."""

    linear_forward: Floats
    linear_backward: Floats
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


def layer(b: Batch, p: Parameters, r: Rates) -> Layer:
    tokens = b.micro_batch * b.seq_len / b.cp
    depth = p["depth_half"] * np.where(b.low_precision > 0, 2.0, 1.0)  # a faster unit ramps longer
    forward, backward = np.zeros(len(b)), np.zeros(len(b))
    for n, k in weights(b):
        forward += matmul_seconds(tokens, n, k, r.linear, depth, p)
        backward += matmul_seconds(tokens, k, n, r.linear, depth, p)
        backward += matmul_seconds(n, k, tokens, r.linear, depth, p)
    attention = _fused_attention(b, p, r, tokens)
    unfused = _unfused_attention(b, p, r, tokens)
    fused = b.attention > 0
    split = np.where(b.sequence_parallel > 0, b.tp, 1.0)
    moved = tokens * (b.hidden / split + 0.6 * b.ffn / b.tp) * p["elementwise_bytes"]
    moved = moved * b.element_bytes / 2 * _by_kernels(b.kernels, p, "elementwise") / r.memory
    cast = p["cast_bytes"] * _by_kernels(b.casts, p, "cast")
    casts = b.low_precision * tokens * (2 * b.hidden + 2 * b.ffn / b.tp) * cast / r.memory
    # bf16 gradients added to an fp32 buffer and cleared, every micro-batch; else the matmul adds
    summed = (2 * b.grad_bytes + 2 * b.half_grad_bytes) * np.where(b.half_grad_bytes > 0, 1.0, 0.0)
    summed = layer_parameters(b) * summed / r.memory
    return Layer(
        linear_forward=forward,
        linear_backward=backward,
        attention_forward=np.where(fused, attention[0], unfused[0]),
        attention_backward=np.where(fused, attention[1], unfused[1]),
        other_forward=0.4 * moved + casts,
        other_backward=0.6 * moved + 2 * casts + summed,
    )


def host_share(b: Batch, p: Parameters) -> Floats:
    """Host time of a layer over that of an eager one on a host of the H100's time."""
    old = np.where(b.generation == GENERATIONS.index("ampere"), p["host_ampere"], 1.0)
    more = np.where((b.attention == 0) & ~_fused_softmax(b), p["host_softmax"], 1.0)
    return old * more * _by_kernels(b.kernels, p, "host")


def _by_kernels(kinds: Floats, p: Parameters, what: str) -> Floats:
    values = np.array([1.0, *(p[f"{what}_{kind}"] for kind in KERNELS[1:])])
    return np.asarray(values[kinds.astype(int)])


def weights(b: Batch) -> list[tuple[Floats, Floats]]:
    """Rows and columns of a layer's matrices on one tensor-parallel rank."""
    kv = np.maximum(b.kv_heads / b.tp, 1.0)  # a head is not cut: with fewer than tp, ranks share
    return [
        (b.head_dim * (b.heads / b.tp + 2 * kv), b.hidden),
        (b.hidden, b.heads * b.head_dim / b.tp),
        (b.gates * b.ffn / b.tp, b.hidden),
        (b.hidden, b.ffn / b.tp),
    ]


def _fused_attention(b: Batch, p: Parameters, r: Rates, tokens: Floats) -> tuple[Floats, Floats]:
    flops = 4 * tokens * b.context * b.heads * b.head_dim / b.tp
    forward = flops / r.attention_forward * (1 + p["attention_ramp_forward"] / b.seq_len)
    backward = 2 * flops / r.attention_backward * (1 + p["attention_ramp_backward"] / b.seq_len)
    return forward, backward


def _unfused_attention(b: Batch, p: Parameters, r: Rates, tokens: Floats) -> tuple[Floats, Floats]:
    """The whole square in two matmuls, and the scores through memory several times.

    Head dimensions that are no multiple of 8 fall off the fast kernels (BLOOM's 108: fourfold).
    """
    scores = tokens * b.seq_len * b.heads / b.tp
    misaligned = np.where(b.head_dim % 8 != 0, 4.0, 1.0)
    products = 4 * scores * b.head_dim / (0.7 * r.matmul) * misaligned
    moved = p["softmax_bytes"] * np.where(_fused_softmax(b), 1.0, p["softmax_unfused"])
    softmax = scores * moved / r.memory
    return products + softmax, 2 * products + p["softmax_backward"] * softmax


def _fused_softmax(b: Batch) -> NDArray[np.bool_]:
    """Megatron's softmax kernel takes sequences x heads in multiples of four only."""
    return np.asarray(b.micro_batch * b.heads / b.tp % 4 == 0)


def head(b: Batch, p: Parameters, r: Rates) -> Floats:
    """Logits and loss of one micro-batch, forward and backward, on the last stage."""
    tokens, vocab = b.micro_batch * b.seq_len / b.cp, b.vocab / b.tp
    depth = np.full(len(b), p["depth_half"])
    products = (
        matmul_seconds(tokens, vocab, b.hidden, r.matmul, depth, p)
        + matmul_seconds(tokens, b.hidden, vocab, r.matmul, depth, p)
        + matmul_seconds(vocab, b.hidden, tokens, r.matmul, depth, p)
    )
    return products + tokens * vocab * p["logit_bytes"] / r.memory


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


def pair_speed(b: Batch, p: Parameters, stride: Floats) -> Floats:
    """Bytes/s from one device to the one `stride` further: the outermost tier between them."""
    speed, unit = np.full(len(b), np.inf), np.ones(len(b))
    for tier in range(MOST_TIERS):
        efficiency = p["link_efficiency"] if tier == 0 else p["nic_efficiency"]
        crosses = 2 * stride > unit
        speed = np.where(crosses, b.tier_bytes_per_second[:, tier] * efficiency, speed)
        unit = b.tier_devices[:, tier]
    return speed


def tensor_parallel(b: Batch, p: Parameters) -> Floats:
    """Exposed seconds of one layer's collectives in one direction: two of the whole activations."""
    size = 2 * b.micro_batch * b.seq_len / b.cp * b.hidden
    speed = group_speed(b, p, b.tp, np.ones(len(b)))
    once = 2 * (b.tp - 1) / b.tp * size / speed + p["tp_latency"] * np.log2(b.tp)
    return 2 * once * (1 - p["tp_hidden"] * b.tp_overlap)


def context_parallel(b: Batch, p: Parameters) -> Floats:
    """Exposed seconds of passing keys and values around the ring, one layer forward; half hidden."""
    size = 4 * b.micro_batch * b.seq_len / b.cp * np.maximum(b.kv_heads / b.tp, 1.0) * b.head_dim
    return 0.5 * (b.cp - 1) * size / group_speed(b, p, b.cp, b.tp)


def shards(b: Batch) -> Floats:
    """Ranks over which fully sharded weights are spread: one replica's data and context ranks."""
    return b.dp * b.cp / b.replicas


def layer_parameters(b: Batch) -> Floats:
    """Parameters of one layer on one tensor-parallel rank."""
    return sum((n * k for n, k in weights(b)), start=np.zeros(len(b)))


def stage_parameters(b: Batch) -> Floats:
    """Parameters of the heaviest pipeline stage on one rank: its layers, embedding or head."""
    ends = np.where(b.pp > 1, 1.0, 2.0) * b.vocab * b.hidden / b.tp
    return b.layers / b.pp * layer_parameters(b) + ends
