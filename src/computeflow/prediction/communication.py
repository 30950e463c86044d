"""Bytes and exposed seconds of a step's communication, by parallel group.

`cluster.collectives` has the time of each collective; here is what a step sends, and what of it is
hidden behind computation.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from computeflow.cluster.collectives import (
    Group,
    Links,
    all_reduce_seconds,
    all_to_all_seconds,
    gather_seconds,
    neighbour_speed,
    ring_speed,
)
from computeflow.prediction import weights
from computeflow.prediction.blocks import BlockArrays, Floats
from computeflow.prediction.kernels import tokens
from computeflow.prediction.parameters import Parameters
from computeflow.prediction.step_inputs import GENERATIONS, StepInputs

_SWITCHES_FROM = GENERATIONS.index("hopper")
_SWITCHES_TO = GENERATIONS.index("blackwell")
_TORUS = GENERATIONS.index("tpu")
_BUCKET_PARAMETERS_PER_RANK = 1e6
"""Where the optimizer is split, large buckets grow with the ranks, so that rings stay busy: those of
Megatron-Core are max(40 million, 1 million x ranks) parameters (distributed_data_parallel.py)."""
_LARGE_BUCKET_BYTES = 100e6
"""Such buckets begin here: Megatron-Core's are 160 MB and more. The 25 MB of torch stay as they are."""


def links(b: StepInputs, p: Parameters) -> Links:
    """The links of every row's cluster, at the share of their rated speed that the predictor takes."""
    return Links(
        devices=b.tier_devices,
        bytes_per_second=b.tier_bytes_per_second,
        scale_up_efficiency=p["link_efficiency"],
        network_efficiency=p["nic_efficiency"],
        year=b.year,
        switch_reduces=(b.generation >= _SWITCHES_FROM) & (b.generation <= _SWITCHES_TO),
        torus=b.generation == _TORUS,
        link_hop_seconds=p["link_hop"],
        network_hop_seconds=p["network_hop"],
    )


def _all_to_all(
    b: StepInputs, p: Parameters, size: Floats, ranks: Floats, stride: Floats, copies: Floats
) -> Floats:
    return all_to_all_seconds(
        replace(links(b, p), network_efficiency=p["exchange_efficiency"]),
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
    """Exposed seconds of one block's collectives in one direction. No other transfer hides their
    latency.
    """
    group = Group.of(links(b, p), b.tp, np.ones(len(b)))
    once = tensor_bytes(b) / group.speed + 2 * group.latency
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


def data_parallel(
    b: StepInputs, p: Parameters, last_backward: Floats, first_forward: Floats
) -> Floats:
    """Exposed reduction of gradients, and gathering of updated weights, once per step.

    Gradients are reduced bucket by bucket while the last micro-batch's backward pass goes on; the last
    bucket is ready when it ends, and always shows. Where the optimizer is split, weights are gathered
    behind the next step's first forward pass, which waits for the first bucket.
    """
    whole = (b.sharded == 0) | (b.pp > 1)
    # sharded layer by layer: replicas sum their shards
    shards = np.where(whole, 1.0, weights.shards(b))
    ranks = np.where(whole, b.dp * b.cp, b.replicas)
    joined = links(b, p)
    split = (b.split_optimizer > 0) & whole
    group = Group.of(joined, ranks, b.tp * shards)
    traffic = _bucketed(b, group, weights.stage_parameters(b) / shards * b.trained_share, split)
    experts = b.layers / b.pp * weights.expert_parameters(b) * b.trained_share * whole
    if experts.any():
        copies = Group.of(joined, weights.expert_replicas(b), b.ep * b.etp)
        of_experts = _bucketed(b, copies, experts, split)
        traffic = [
            ours + np.where(experts > 0, theirs, 0.0)
            for ours, theirs in zip(traffic, of_experts, strict=True)
        ]
    reduced, last, gathered, first = traffic
    backward = np.where(b.zero2 > 0, b.micro_batches, 1.0) * last_backward
    return _overlapped(b, p, reduced, backward, last) + _overlapped(
        b, p, gathered, first_forward, first
    )


def _overlapped(
    b: StepInputs, p: Parameters, traffic: Floats, work: Floats, least: Floats
) -> Floats:
    """Exposed part of transfers behind work, at least one bucket; what is hidden slows the work."""
    hidden = np.minimum(traffic - least, p["dp_hidden"] * work) * b.dp_overlap
    return traffic - (1 - p["shard_interference"]) * hidden


def _bucketed(
    b: StepInputs, group: Group, parameters: Floats, split: NDArray[np.bool_]
) -> list[Floats]:
    """Seconds of reducing all gradients and of the last bucket alone; of gathering the weights and of
    the first bucket alone.

    A split optimizer scatters gradients in large buckets; in small ones they are all-reduced as
    without it (DistributedDataParallel with ZeroRedundancyOptimizer), where that is faster, and the
    weights are gathered before the next step begins.
    """
    whole = parameters * b.grad_bytes
    grown = _BUCKET_PARAMETERS_PER_RANK * b.grad_bytes * group.ranks
    large = np.maximum(b.bucket_bytes, np.where(split, grown, 0.0))
    bucket = np.where(b.bucket_bytes < _LARGE_BUCKET_BYTES, b.bucket_bytes, large)
    buckets = np.maximum(whole / bucket, 1.0)
    times = np.where(b.zero2 > 0, b.micro_batches, 1.0)  # gradients do not wait for the last one
    reduced = gather_seconds(group, whole / buckets, buckets * times)
    small = b.bucket_bytes < _LARGE_BUCKET_BYTES
    if not split.all() or small.any():
        summed = all_reduce_seconds(group, whole / buckets, buckets)
        lesser = np.where(small & (b.zero2 == 0), np.minimum(summed, reduced), reduced)
        reduced = np.where(split, lesser, summed)
    gathers = np.maximum(whole / large, 1.0)
    gathered = gather_seconds(group, parameters * b.param_bytes / gathers, gathers)
    gathered = np.where(split, gathered, 0.0)
    first = np.where(small, gathered, gathered / gathers)
    return [reduced, reduced / (buckets * times), gathered, first]
