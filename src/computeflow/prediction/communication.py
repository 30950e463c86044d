"""Bytes and exposed seconds of a step's communication, by parallel group.

`cluster.collectives` has the time of each collective; here is what a step sends, and what of it is
hidden behind computation.
"""

from __future__ import annotations

import numpy as np

from computeflow.cluster.collectives import (
    Links,
    all_to_all_seconds,
    neighbour_speed,
    ring_latency,
    ring_seconds,
    ring_speed,
    tree_latency,
)
from computeflow.prediction import weights
from computeflow.prediction.blocks import BlockArrays, Floats
from computeflow.prediction.kernels import tokens
from computeflow.prediction.parameters import Parameters
from computeflow.prediction.step_inputs import StepInputs


def links(b: StepInputs, p: Parameters) -> Links:
    """The links of every row's cluster, at the share of their rated speed that the predictor takes."""
    return Links(
        devices=b.tier_devices,
        bytes_per_second=b.tier_bytes_per_second,
        scale_up_efficiency=p["link_efficiency"],
        network_efficiency=p["nic_efficiency"],
    )


def _all_to_all(
    b: StepInputs, p: Parameters, size: Floats, ranks: Floats, stride: Floats, copies: Floats
) -> Floats:
    return all_to_all_seconds(
        links(b, p),
        size,
        ranks,
        stride,
        copies=copies,
        once_per_node=b.dedup > 0,
        latency_seconds=p["ep_latency"],
    )


def routed_bytes(b: StepInputs, k: BlockArrays) -> Floats:
    """Bytes of one block's tokens for their experts, a copy for each; each rank sends its part."""
    size = b.element_bytes * tokens(b) / b.tp * k.top_k * k.expert_hidden
    return np.where(k.experts > 0, size, 0.0)


def expert_parallel(b: StepInputs, k: BlockArrays, p: Parameters) -> Floats:
    """Exposed seconds of sending tokens to their experts and back, one block in one direction."""
    if not (k.experts > 0).any():
        return np.zeros(len(b))
    size = routed_bytes(b, k)
    once = _all_to_all(b, p, size, b.ep, b.etp, k.top_k)
    gathered = (b.etp - 1) * size / ring_speed(links(b, p), b.etp, np.ones(len(b)))
    seconds = 2 * (once + np.where(b.etp > 1, gathered, 0.0))
    return np.where(k.experts > 0, seconds * (1 - p["ep_hidden"] * b.ep_overlap), 0.0)


def tensor_bytes(b: StepInputs) -> Floats:
    """Bytes that a rank sends in one collective of a micro-batch's activations."""
    size = b.element_bytes * tokens(b) * b.hidden
    # Transformer Engine's overlap gathers fp8 operands, and scatters bf16 results
    size = size * np.where((b.low_precision > 0) & (b.tp_overlap > 0), 0.75, 1.0)
    return 2 * (b.tp - 1) / b.tp * size


def tensor_collectives(k: BlockArrays) -> Floats:
    """Collectives of one block in one direction: one for its mixer, one for its feed-forward part."""
    mixers = ((k.heads > 0) | (k.mixer_weights > 0)).astype(np.float64)
    return mixers + ((k.ffn > 0) | (k.experts > 0))


def tensor_parallel(b: StepInputs, k: BlockArrays, p: Parameters) -> Floats:
    """Exposed seconds of one block's collectives in one direction."""
    speed = ring_speed(links(b, p), b.tp, np.ones(len(b)))
    once = tensor_bytes(b) / speed + tree_latency(p["tp_latency"], b.tp)
    return tensor_collectives(k) * once * (1 - p["tp_hidden"] * b.tp_overlap)


def ring_bytes(b: StepInputs, k: BlockArrays) -> Floats:
    """Bytes of one block's keys and values, once around the context-parallel ring."""
    heads = np.maximum(k.kv_heads / b.tp, 1.0) * (k.qk_dim + k.value_dim)
    width = np.where(k.kv_rank > 0, k.kv_rank + k.rope_dim, heads)
    return (b.cp - 1) * b.element_bytes * tokens(b) * width


def exchange_bytes(b: StepInputs, k: BlockArrays) -> Floats:
    """Bytes of heads for tokens before attention (queries, keys, values), and back after (outputs);
    a rank's own part included.
    """
    parts = (k.heads + k.kv_heads) * (k.qk_dim + k.value_dim) / b.tp
    return b.element_bytes * tokens(b) * parts


def stage_bytes(b: StepInputs) -> Floats:
    """Bytes of one micro-batch's activations to the next stage; gradients back are as many."""
    return b.element_bytes * tokens(b) * b.hidden / b.tp


def context_parallel(b: StepInputs, k: BlockArrays, p: Parameters) -> Floats:
    """Exposed seconds of one block forward: keys and values around the ring, half of it hidden; or
    two exchanges of heads for tokens (arXiv:2309.14509), which nothing hides.
    """
    if not (b.cp > 1).any():
        return np.zeros(len(b))
    ring = 0.5 * ring_bytes(b, k) / ring_speed(links(b, p), b.cp, b.tp)
    if not (b.context_exchange > 0).any():
        return ring
    whole = _all_to_all(b, p, exchange_bytes(b, k), b.cp, b.tp, np.ones(len(b)))
    return np.where(b.context_exchange > 0, whole, ring)


def pipeline_parallel(b: StepInputs, p: Parameters) -> Floats:
    """Exposed seconds of one micro-batch's activations to the next stage and gradients back.

    Tensor-parallel ranks send a part each, with or without sequence parallelism (arXiv:2104.04473,
    section 4.1).
    """
    size = 2 * stage_bytes(b)
    speed = neighbour_speed(links(b, p), b.pp, b.tp * b.cp * b.dp)
    return np.where(b.pp > 1, p["p2p_exposed"] * b.vp * size / speed, 0.0)


def data_parallel(b: StepInputs, p: Parameters, last_backward: Floats) -> Floats:
    """Exposed reduction of gradients (and gathering of weights) once per step.

    Overlap hides it behind the last micro-batch's backward pass; a tenth always shows.
    """
    whole = (b.sharded == 0) | (b.pp > 1)
    shards = np.where(
        whole, 1.0, weights.shards(b)
    )  # sharded layer by layer: replicas sum their shards
    ranks = np.where(whole, b.dp * b.cp, b.replicas)
    size = weights.stage_parameters(b) / shards
    back = np.where(b.split_optimizer * whole > 0, b.param_bytes, b.grad_bytes)
    size = size * b.trained_share
    times = np.where(b.zero2 > 0, b.micro_batches, 1.0)  # gradients do not wait for the last one
    seconds = ring_seconds(links(b, p), size * (times * b.grad_bytes + back), ranks, b.tp * shards)
    seconds = seconds + _latency(b, p, size, ranks)
    experts = b.layers / b.pp * weights.expert_parameters(b) * b.trained_share
    experts = np.where(whole, experts, 0.0)
    copies = weights.expert_replicas(b)
    seconds = seconds + ring_seconds(
        links(b, p), experts * (b.grad_bytes + back), copies, b.ep * b.etp
    )
    seconds = seconds + np.where(experts > 0, _latency(b, p, experts, copies), 0.0)
    hidden = times * last_backward * p["dp_hidden"] * b.dp_overlap
    return np.maximum(seconds - hidden, 0.1 * seconds)


def _latency(b: StepInputs, p: Parameters, size: Floats, ranks: Floats) -> Floats:
    """Latency of all buckets: a hop of the ring for every rank, or of a tree where libraries use it."""
    buckets = np.maximum(size * b.grad_bytes / b.bucket_bytes, 1.0)
    ring = ring_latency(p["dp_latency"], ranks)
    tree = tree_latency(p["tree_latency"], ranks)
    each = np.where(b.year >= 2026, np.minimum(ring, tree), ring)
    return np.where(ranks > 1, each * buckets, 0.0)
