"""Seconds of the kernels of a step on one device: matmuls, attention, memory-bound work, the head.

Each formula names what it counts and neglects. Rates are sustained ones: the best matmul
published for the device, times what the power limit leaves of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from computeflow.prediction.blocks import BlockArrays, Floats, LocalExperts, local_experts, matrices
from computeflow.prediction.parameters import Parameters
from computeflow.prediction.stack import ATTENTIONS, GRAPHS, KERNELS
from computeflow.prediction.step_inputs import GENERATIONS, StepInputs
from computeflow.prediction.weights import kind_parameters

_MEMORY_EFFICIENCY = 0.88
"""Share of the rated bandwidth that large copies reach: 4.23 of 4.8 TB/s on our H200."""
_MXU = 128
"""Width of a TPU's matrix unit: narrower operands are padded to it (Cloud TPU performance guide,
"tensor dimensions"; read 2026-11-16)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """FLOP/s and bytes/s of every row's device."""

    clock: Floats
    """Sustained over rated clock, power cap included: what `compute.clock` is made of."""
    matmul: Floats
    linear: Floats
    """Rate of the block's linear layers: fp8 where the job has it."""
    attention_forward: Floats
    """Rate at a head dimension of 128."""
    attention_backward: Floats
    memory: Floats


def rates(b: StepInputs, p: Parameters) -> Rates:
    clock = _by_generation(b, p) * b.power_share ** p["power_exponent"]
    mature = 1 + p["immaturity"] * np.exp(-b.age_years / 0.8)
    full = np.where(b.element_bytes > 2, b.peak_flops / b.peak_bf16, 1.0)
    matmul = b.matmul_ceiling * clock / mature * full
    low = matmul * b.peak_flops / b.peak_bf16 * b.low_rate
    kernel = _attention_kernel(b, p)
    base = b.attention_peak * clock / 0.87 * kernel / mature
    return Rates(
        clock=clock,
        matmul=matmul,
        linear=np.where(b.low_precision > 0, low, matmul),
        attention_forward=base * p["attention_forward"],
        attention_backward=base * p["attention_backward"],
        memory=b.hbm_bytes_per_second * _MEMORY_EFFICIENCY,
    )


def _attention_kernel(b: StepInputs, p: Parameters) -> Floats:
    """Rate of the stack's attention over that of kernels made for Hopper, of the peak."""
    first, second, own = (
        b.attention == ATTENTIONS.index(kind) for kind in ("flash1", "flash2", "sdpa")
    )
    blackwell = b.generation == GENERATIONS.index("blackwell")
    old = first | second | (own & ~blackwell)  # there PyTorch calls cuDNN's
    kernel = np.ones(len(b))
    for name in ("ampere", "ada", "cdna"):  # the first two run the same kernels
        here = b.generation == GENERATIONS.index(name)
        share = p["attention_cdna" if name == "cdna" else "attention_ampere"]
        kernel = np.where(here, share, kernel)
    for name in ("hopper", "blackwell", "cdna"):
        here = b.generation == GENERATIONS.index(name)
        kernel = np.where(here & old, p[f"attention_old_{name}"] * kernel, kernel)
    return np.where(first, p["attention_first"], 1.0) * kernel


def _by_generation(b: StepInputs, p: Parameters) -> Floats:
    names = ["ampere", "hopper", "blackwell", "trainium", "other", "other", "other", "other"]
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


def tokens(b: StepInputs) -> Floats:
    """Tokens of one micro-batch on one device."""
    return b.micro_batch * b.seq_len / b.cp


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Seconds of one layer and one micro-batch on one device, before communication."""

    linear_forward: Floats
    linear_backward: Floats
    routed: Floats
    """The routed experts' part of the linear layers, both ways."""
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


def layer(b: StepInputs, k: BlockArrays, p: Parameters, r: Rates) -> Layer:
    """Seconds of one block of a kind."""
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
    updates, unpacked = _low_rank(b, k, p, r)
    return Layer(
        linear_forward=forward + routed_forward,
        linear_backward=backward + routed_backward + weight,
        routed=routed_forward + routed_backward + routed_weight * trained,
        attention_forward=attention[0],
        attention_backward=attention[1],
        other_forward=0.4 * moved + casts + sorting + scan + updates + unpacked,
        other_backward=0.6 * moved + 2 * casts + summed + sorting + 2 * scan + updates + unpacked,
    )


def _low_rank(b: StepInputs, k: BlockArrays, p: Parameters, r: Rates) -> tuple[Floats, Floats]:
    """Traffic beside frozen weights, each way: of the low-rank updates, whose result is scaled and
    added to every output, and of weights that are unpacked from 4 bits before a matmul.
    """
    if not (b.frozen > 0).any():
        return np.zeros(len(b)), np.zeros(len(b))
    beside = replace(k, ffn=k.ffn * b.adapts_all)
    width = np.zeros(len(b))
    for matrix in matrices(beside, b.hidden, b.tp):
        width += np.where(matrix.rows * matrix.columns > 0, matrix.rows + matrix.columns, 0.0)
    moved = (
        b.frozen
        * tokens(b)
        * width
        * p["low_rank_bytes"]
        * _by_kernels(b.kernels, p, "elementwise")
    )
    packed = (b.frozen > 0) & (b.param_bytes < 1)
    unpacked = np.where(packed, kind_parameters(b, k) * p["unpack_bytes"], 0.0)
    return moved / r.memory, unpacked / r.memory


def _grouped(
    b: StepInputs, k: BlockArrays, local: LocalExperts, p: Parameters, r: Rates, depth: Floats
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


def host_share(b: StepInputs, k: BlockArrays, p: Parameters) -> Floats:
    """Host time of a block over that of an eager one on a host of the H100's time."""
    old = np.where(b.generation == GENERATIONS.index("ampere"), p["host_ampere"], 1.0)
    more = np.where((b.attention == 0) & ~_fused_softmax(b, k), p["host_softmax"], 1.0)
    routing = np.where(b.graphs > 0, p["host_moe_graph"], p["host_moe"])
    more = more * np.where(k.experts > 0, routing, 1.0)
    launched = np.where(b.graphs == GRAPHS.index("step"), p["host_graph"], 1.0)
    return old * more * launched * b.host_factor * _by_kernels(b.kernels, p, "host")


def _by_kernels(kinds: Floats, p: Parameters, what: str) -> Floats:
    values = np.array([1.0, *(p[f"{what}_{kind}"] for kind in KERNELS[1:])])
    return np.asarray(values[kinds.astype(int)])


def _attention(b: StepInputs, k: BlockArrays, p: Parameters, r: Rates) -> tuple[Floats, Floats]:
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


def _fused_attention(
    b: StepInputs, k: BlockArrays, p: Parameters, r: Rates
) -> tuple[Floats, Floats]:
    flops = 2 * tokens(b) * k.context * k.heads * (k.qk_dim + k.value_dim) / b.tp
    narrow = (b.generation == GENERATIONS.index("tpu")) & (k.qk_dim < _MXU)
    flops = flops / np.where(narrow, np.maximum(k.qk_dim, 1.0) / _MXU, head_dim_rate(k.qk_dim))
    forward = flops / r.attention_forward * (1 + p["attention_ramp_forward"] / b.seq_len)
    backward = 2 * flops / r.attention_backward * (1 + p["attention_ramp_backward"] / b.seq_len)
    return forward, backward


def _unfused_attention(
    b: StepInputs, k: BlockArrays, p: Parameters, r: Rates
) -> tuple[Floats, Floats]:
    """The whole square in two matmuls, and the scores through memory several times.

    Head dimensions that are no multiple of 8 fall off the fast kernels (BLOOM's 108: fourfold).
    """
    scores = tokens(b) * b.seq_len * k.heads / b.tp
    misaligned = np.where(k.qk_dim % 8 != 0, 4.0, 1.0)
    products = 2 * scores * (k.qk_dim + k.value_dim) / (0.7 * r.matmul) * misaligned
    moved = p["softmax_bytes"] * np.where(_fused_softmax(b, k), 1.0, p["softmax_unfused"])
    softmax = scores * moved / r.memory
    return products + softmax, 2 * products + p["softmax_backward"] * softmax


def _fused_softmax(b: StepInputs, k: BlockArrays) -> NDArray[np.bool_]:
    """Megatron's softmax kernel takes sequences x heads in multiples of four only."""
    return np.asarray(b.micro_batch * k.heads / b.tp % 4 == 0)


def head(b: StepInputs, p: Parameters, r: Rates) -> Floats:
    """Logits and loss of one micro-batch, forward and backward, on the last stage."""
    t, vocab = tokens(b), b.vocab / b.tp
    depth = np.full(len(b), p["depth_half"])
    products = (
        _matmul_seconds(t, vocab, b.hidden, r.matmul, depth, p)
        + _matmul_seconds(t, b.hidden, vocab, r.matmul, depth, p)
        + (1 - b.frozen) * _matmul_seconds(vocab, b.hidden, t, r.matmul, depth, p)
    )
    return b.losses * (products + t * vocab * p["logit_bytes"] / r.memory)
