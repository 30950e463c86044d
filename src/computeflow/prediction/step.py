"""A step from its terms: where every second of it goes, account by account. Start with `account_step`.

    step = micro-batches x slowest stage + fill and drain + exposed gradient traffic + optimizer

all of it times the jitter of many ranks; then data that comes late, and checkpoints. The accounts are
the parts of exactly this sum, so they close.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from computeflow.prediction import terms
from computeflow.prediction.batch import Batch, Floats
from computeflow.prediction.parameters import Parameters

_SOFTNESS = 4.0
"""Of the maximum of device and host time: how sharply the slower one wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    seconds: Floats
    accounts: dict[str, Floats]
    """Seconds per GPU and step; they sum to `seconds`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """One layer, one micro-batch, one direction, split by account."""

    kernels: Floats
    recompute: Floats
    host: Floats
    tp: Floats
    cp: Floats
    dp: Floats

    @property
    def total(self) -> Floats:
        return self.kernels + self.recompute + self.host + self.tp + self.cp + self.dp


def account_step(b: Batch, p: Parameters) -> Step:
    r = terms.rates(b, p)
    one = terms.layer(b, p, r)
    forward, backward = _passes(b, p, one)
    layers = b.layers / b.pp
    head = terms.head(b, p, r)
    p2p = _pipeline_transfer(b, p)
    rounds = b.micro_batches
    stages = pipeline(b, forward.total + backward.total, head)
    dp = _gradient_traffic(b, p, layers * backward.total)
    shards = np.where(
        b.sharded > 0, terms.shards(b), np.where(b.split_optimizer > 0, b.dp * b.cp, 1.0)
    )
    moved = p["optimizer_bytes"] * np.where(b.state_bytes <= 4, p["optimizer_bf16"], 1.0)
    optimizer = terms.stage_parameters(b) * moved / shards / r.memory
    work = stages.seconds + rounds * p2p + dp + optimizer
    jitter = work * p["jitter"] * np.log2(np.maximum(b.gpus / b.domain, 1.0))
    late_input = np.maximum(b.input_seconds - work - jitter, 0.0)

    def booked(part: str) -> Floats:
        return np.asarray(rounds * layers * (getattr(forward, part) + getattr(backward, part)))

    kernels = booked("kernels") + rounds * head / b.pp
    model = b.flops_per_token * b.micro_batch * b.micro_batches * b.seq_len / (b.tp * b.pp * b.cp)
    useful = model / b.peak_flops
    matmuls = (
        rounds
        * layers
        * (
            one.linear_forward
            + one.linear_backward
            + one.attention_forward
            + one.attention_backward
        )
    )
    clock = np.minimum(matmuls * np.maximum(1 - r.clock, 0.0), np.maximum(kernels - useful, 0.0))
    accounts = {
        "compute.model": useful,
        "compute.clock": clock,
        "compute.kernel": kernels - useful - clock,
        "compute.recompute": booked("recompute"),
        "optimizer": optimizer,
        "host": booked("host"),
        "comm.tp": booked("tp"),
        "comm.cp": booked("cp"),
        "comm.pp": rounds * p2p,
        "comm.dp": booked("dp") + dp,
        "bubble": stages.seconds - rounds * stages.slowest,
        "imbalance": rounds * (stages.slowest - stages.mean),
        "straggler": jitter,
        "input": late_input,
        "checkpoint": b.checkpoint_seconds,
    }
    seconds = work + jitter + late_input + b.checkpoint_seconds
    return Step(seconds=seconds, accounts=accounts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Forward and backward of all micro-batches, without transfers."""

    seconds: Floats
    slowest: Floats
    """Of the slowest stage, one micro-batch."""
    mean: Floats
    """Of the mean stage, one micro-batch."""


def pipeline(b: Batch, layer: Floats, head: Floats) -> Pipeline:
    """1F1B over stages that may differ: layers as evenly as they go, the first ones more; the last
    has the head too. Some stacks count the head as what it costs and give that stage fewer layers.

    A stage works once for every micro-batch, after the first has passed the stages before it and until
    the last has passed them back; the latest such stage decides. Only the last of the longer stages and
    the last of all can be it. An interleaved schedule fills and drains in chunks of a stage.
    tests/test_schedule.py plays both, operation by operation.
    """
    fewest, more = np.floor(b.layers / b.pp), b.layers % b.pp
    longer = np.where(more > 0, fewest + 1, fewest) * layer
    last = fewest * layer + head
    everything = b.layers * layer + head
    by_cost = np.maximum(np.ceil(everything / b.pp / layer) * layer, head)
    last = np.where(b.balances_head * (b.pp > 1) > 0, by_cost, last)
    slowest = np.maximum(np.where(b.balances_head > 0, 0.0, np.where(more > 0, longer, 0.0)), last)
    ends_last = b.micro_batches * last + (everything - last) / b.vp
    ends_longer = b.micro_batches * longer + np.maximum(more - 1, 0.0) * longer / b.vp
    ends_longer = np.where((more > 0) & (b.balances_head == 0), ends_longer, 0.0)
    return Pipeline(
        seconds=np.maximum(ends_last, ends_longer), slowest=slowest, mean=everything / b.pp
    )


def _passes(b: Batch, p: Parameters, one: terms.Layer) -> tuple[_Pass, _Pass]:
    tp, cp = terms.tensor_parallel(b, p), terms.context_parallel(b, p)
    again = b.recompute_full * one.forward + b.recompute_selective * _selective(b, one)
    host = p["host_forward"] * np.where(b.tp > 1, p["host_tp"], 1.0)
    host = host * terms.host_share(b, p)
    sequence = 1 + 0.5 * b.sequence_parallel  # backward gathers the activations once more
    tp_backward = tp * sequence + b.recompute_full * tp
    late_forward = _late(one.forward + tp + cp, host)
    late_backward = _late(
        one.backward + again + tp_backward + 2 * cp, host * (p["host_backward"] + b.recompute_full)
    )
    zero = np.zeros(len(b))
    forward = _Pass(kernels=one.forward, recompute=zero, host=late_forward, tp=tp, cp=cp, dp=zero)
    backward = _Pass(
        kernels=one.backward, recompute=again, host=late_backward, tp=tp_backward, cp=2 * cp,
        dp=zero,
    )  # fmt: skip
    return _gathered(b, p, forward, gathers=1.0), _gathered(
        b, p, backward, gathers=1.0, scatters=True
    )


def _late(device: Floats, host: Floats) -> Floats:
    """How much longer a layer takes because the host launches it: soft maximum less device time."""
    return (device**_SOFTNESS + host**_SOFTNESS) ** (1 / _SOFTNESS) - device


def _selective(b: Batch, one: terms.Layer) -> Floats:
    """Half of the matmuls, or what is cheap: elementwise work (fused) or the scores (unfused)."""
    cheap = np.where(b.attention > 0, 0.7 * one.other_forward, one.attention_forward)
    return np.where(b.selective_half > 0, 0.5 * one.linear_forward + one.other_forward, cheap)


def _gathered(
    b: Batch, p: Parameters, done: _Pass, *, gathers: float, scatters: bool = False
) -> _Pass:
    """Fully sharded weights: gathering hides behind the layer or the layer behind it, never fully.

    With a pipeline the weights stay gathered for the whole step; that traffic is counted there.
    """
    ranks = terms.shards(b)
    size = terms.layer_parameters(b) * (2.0 * gathers + (b.grad_bytes if scatters else 0.0))
    latency = (1 + scatters) * p["dp_latency"] * 4 * np.sqrt(ranks)
    speed = terms.group_speed(b, p, ranks, b.tp)
    traffic = (ranks - 1) / ranks * size / speed + np.where(ranks > 1, latency, 0.0)
    traffic = traffic * np.where((b.sharded > 0) & (b.pp == 1), 1.0, 0.0)
    exposed = np.maximum(traffic - done.total, 0.0)
    exposed = exposed + p["shard_interference"] * np.minimum(done.total, traffic)
    return _Pass(
        kernels=done.kernels, recompute=done.recompute, host=done.host, tp=done.tp, cp=done.cp,
        dp=exposed,
    )  # fmt: skip


def _pipeline_transfer(b: Batch, p: Parameters) -> Floats:
    """Activations to the next stage and gradients back, of one micro-batch.

    Tensor-parallel ranks send a part each, with or without sequence parallelism (arXiv:2104.04473,
    section 4.1).
    """
    size = 2 * 2 * b.micro_batch * b.seq_len / b.cp * b.hidden / b.tp
    speed = terms.pair_speed(b, p, b.tp * b.cp * b.dp)
    return np.where(b.pp > 1, p["p2p_exposed"] * b.vp * size / speed, 0.0)


def _gradient_traffic(b: Batch, p: Parameters, last_backward: Floats) -> Floats:
    """Exposed reduction of gradients (and gathering of weights) once per step.

    Overlap hides it behind the last micro-batch's backward pass; a tenth always shows.
    """
    whole = (b.sharded == 0) | (b.pp > 1)
    shards = np.where(
        whole, 1.0, terms.shards(b)
    )  # sharded layer by layer: replicas sum their shards
    ranks = np.where(whole, b.dp * b.cp, b.replicas)
    size = terms.stage_parameters(b) / shards
    volume = size * (
        b.grad_bytes + np.where(b.split_optimizer * whole > 0, b.param_bytes, b.grad_bytes)
    )
    buckets = np.maximum(size * b.grad_bytes / b.bucket_bytes, 1.0)
    seconds = (ranks - 1) / ranks * volume / terms.group_speed(b, p, ranks, b.tp * shards)
    seconds = seconds + np.where(ranks > 1, p["dp_latency"] * (ranks - 1) * buckets, 0.0)
    hidden = last_backward * p["dp_hidden"] * b.dp_overlap
    return np.maximum(seconds - hidden, 0.1 * seconds)
