"""The time of a step: where every second of it goes, account by account. Start with `account_step`.

    step = micro-batches x slowest stage + fill and drain + exposed gradient traffic + optimizer

all of it times the jitter of many ranks; then data that comes late, and checkpoints. The accounts are
the parts of exactly this sum, so they close.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from computeflow.cluster.collectives import Group, gather_seconds
from computeflow.prediction import communication, kernels, weights
from computeflow.prediction.activations import bytes_per_token
from computeflow.prediction.blocks import BlockArrays, Floats, local_experts, matrices
from computeflow.prediction.parameters import Parameters
from computeflow.prediction.step_inputs import StepInputs
from computeflow.workload.layout import SCHEDULES


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedSteps:
    seconds: Floats
    accounts: dict[str, Floats]
    """Seconds per GPU and step; they sum to `seconds`."""


_MUON_FLOPS = 30.0
"""FLOPs per parameter and hidden width: five Newton-Schulz steps of 3 products (arXiv:2502.16982)."""
_TAKING = (
    "kernels", "recompute", "host", "copy", "comm.tp", "comm.cp", "comm.ep", "comm.dp", "uneven",
)  # fmt: skip
"""Parts of a micro-batch's forward and backward pass through the layers."""
_PARTS = (*_TAKING, "matmuls")
"""These parts, and the share of the kernels that is matmuls and attention."""


def account_step(b: StepInputs, p: Parameters) -> PredictedSteps:
    r = kernels.rates(b, p)
    both, backward = _layers(b, p, r)
    seconds = sum((both[part] for part in _TAKING), start=np.zeros(len(b)))
    head = kernels.head(b, p, r)
    p2p = communication.pipeline_parallel(b, p)
    rounds = b.micro_batches
    stages = pipeline(b, p, seconds / b.layers, head)
    forward = (seconds - backward) / b.pp
    dp = communication.data_parallel(b, p, backward / b.pp, forward)
    dp = dp + rounds * _gathered_ends(b, p, head)
    optimizer, copy = update(b, p, r)
    work = stages.seconds + rounds * p2p + dp + optimizer + copy
    jitter = work * p["jitter"] * np.log2(np.maximum(b.gpus / b.domain, 1.0))
    booked = {part: rounds * total / b.pp for part, total in both.items()}
    busy = booked["kernels"] + rounds * head / b.pp
    model = b.flops_per_token * b.micro_batch * b.micro_batches * b.seq_len / (b.tp * b.pp * b.cp)
    useful = model / b.peak_flops
    slowed = booked["matmuls"] * np.maximum(1 - r.clock, 0.0)
    clock = np.minimum(slowed, np.maximum(busy - useful, 0.0))
    accounts = {
        "compute.model": useful,
        "compute.clock": clock,
        "compute.kernel": busy - useful - clock,
        "compute.recompute": booked["recompute"],
        "optimizer": optimizer,
        "copy": booked["copy"] + copy,
        "host": booked["host"],
        "comm.tp": booked["comm.tp"],
        "comm.cp": booked["comm.cp"],
        "comm.ep": booked["comm.ep"],
        "comm.pp": rounds * p2p,
        "comm.dp": booked["comm.dp"] + dp,
        "bubble": stages.seconds - rounds * stages.slowest,
        "imbalance": rounds * (stages.slowest - stages.mean) + booked["uneven"],
        "straggler": jitter,
    }
    step = PredictedSteps(seconds=work + jitter, accounts=accounts)
    if (b.maturity != 1).any():
        step = scale_step(step, 1 / b.maturity)
    late_input = np.maximum(b.input_seconds - step.seconds, 0.0)
    accounts = step.accounts | {"input": late_input, "checkpoint": b.checkpoint_seconds}
    return PredictedSteps(
        seconds=step.seconds + late_input + b.checkpoint_seconds,
        accounts={name: np.broadcast_to(values, len(b)) for name, values in accounts.items()},
    )


def scale_step(step: PredictedSteps, factor: Floats | float) -> PredictedSteps:
    """The step `factor` times as long, its accounts still closing.

    The model's FLOPs over the peak are what they are, so `compute.model` stays and MFU moves with the
    step. Which of the other accounts differ is exactly what a total cannot tell, so all keep their
    proportions: the growth is not booked as `unexplained`, because it is no measurement that was left
    over, nor on one account, because nothing points at it. A factor below the MFU would need more than
    the peak; the step then is the model's FLOPs alone.
    """
    useful = step.accounts["compute.model"]
    seconds = np.maximum(factor * step.seconds, useful)
    others = step.seconds - useful
    ratio = (seconds - useful) / np.where(others > 0, others, 1.0)
    accounts = {name: ratio * values for name, values in step.accounts.items()}
    accounts["compute.model"] = useful
    return replace(step, seconds=useful + ratio * others, accounts=accounts)


def _layers(b: StepInputs, p: Parameters, r: kernels.Rates) -> tuple[dict[str, Floats], Floats]:
    """Seconds of all layers for one micro-batch, by part; and the backward pass alone, together."""
    both = {part: np.zeros(len(b)) for part in _PARTS}
    backward = np.zeros(len(b))
    for k in b.present:
        there, back = _passes(b, k, p, r)
        for part in _PARTS:
            both[part] += k.count * (there[part] + back[part])
        backward += k.count * sum((back[part] for part in _TAKING), start=np.zeros(len(b)))
    return both, backward


def update(b: StepInputs, p: Parameters, r: kernels.Rates) -> tuple[Floats, Floats]:
    """The optimizer's pass over weights, gradients and state of the heaviest stage; and copies for it.

    Where the state is on the host, the host updates it: gradients go there, weights come back, and
    neither is hidden. On disk, the state is read and written too.
    """
    whole = b.sharded + b.split_optimizer == 0
    shards = np.where(whole, 1.0, weights.shards(b))
    copies = np.where(whole, 1.0, weights.expert_replicas(b))
    experts = b.layers / b.pp * weights.expert_parameters(b)
    own = (weights.stage_parameters(b) / shards + experts / copies) * b.trained_share
    moved = p["optimizer_bytes"] * np.where(b.state_bytes <= 4, p["optimizer_bf16"], 1.0)
    moved = np.maximum(moved - 2 * b.spared_state, 0.0)
    here = own * (moved / r.memory + b.orthogonalises * _MUON_FLOPS * b.hidden / r.matmul)
    there = own * (2 * b.state_bytes + b.grad_bytes) / p["cpu_update"]
    both_ways = own * (b.grad_bytes + b.param_bytes) / _host_speed(b, p)
    disk = b.offload_disk * own * 2 * b.state_bytes / p["disk"]
    away = b.offload_state > 0
    return np.where(away, there, here), np.where(away, both_ways + disk, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Forward and backward of all micro-batches, without transfers."""

    seconds: Floats
    slowest: Floats
    """Time of the slowest stage, one micro-batch."""
    mean: Floats
    """Time of the mean stage, one micro-batch."""


def pipeline(b: StepInputs, p: Parameters, layer: Floats, head: Floats) -> Pipeline:
    """1F1B over stages that may differ: layers as evenly as they go, the first ones more; the last
    has the head too.

    A stage works once for every micro-batch, after the first has passed the stages before it and until
    the last has passed them back; the latest such stage decides. Only the last of the longer stages and
    the last of all can be it. An interleaved schedule fills and drains in chunks of a stage.
    tests/test_schedule.py plays both, operation by operation. Schedules that put the weights'
    gradients into the gaps shorten the fill.
    """
    fewest = np.floor(b.layers / b.pp)
    more = b.layers - fewest * b.pp
    longer = np.where(more > 0, fewest + 1, fewest) * layer
    last = fewest * layer + head
    everything = b.layers * layer + head
    # DualPipe: a device has a stage and the one opposite to it
    paired = np.maximum((longer + last) / 2, everything / b.pp)
    last = np.where(b.schedule == SCHEDULES.index("dualpipe"), paired, last)
    longer = np.where(b.schedule == SCHEDULES.index("dualpipe"), paired, longer)
    slowest = np.maximum(np.where(more > 0, longer, 0.0), last)
    fill = _fill(b, p) / b.vp
    ends_last = b.micro_batches * last + (everything - last) * fill
    ends_longer = b.micro_batches * longer + np.maximum(more - 1, 0.0) * longer * fill
    ends_longer = np.where(more > 0, ends_longer, 0.0)
    return Pipeline(
        seconds=np.maximum(ends_last, ends_longer), slowest=slowest, mean=everything / b.pp
    )


def _fill(b: StepInputs, p: Parameters) -> Floats:
    """What remains of 1F1B's fill and drain, (pp - 1) x (forward + backward), under other schedules.

    With W the weights' gradients: zero-bubble (ZB-H1) F + B - 2W, its V-shaped form F + B - 3W
    (arXiv:2401.10241, 2405.15362); DualPipe (pp/2 - 1) x (F&B + B - 3W), both directions at once
    (arXiv:2412.19437, table 2). Shares are those of the FLOPs; a backward pass is two thirds.
    """
    if not b.schedule.any():
        return np.ones(len(b))
    weight = b.weight_share
    halves = np.where(b.pp > 1, (b.pp / 2 - 1) / np.maximum(b.pp - 1, 1.0), 0.0)
    remains = [
        np.ones(len(b)),
        1 - 2 * weight,
        1 - 3 * weight,
        halves * (1 + 2 / 3 - 3 * weight),
    ]
    promised = np.maximum(np.choose(b.schedule.astype(int), remains), 0.0)
    return 1 - p["schedule_gain"] * (1 - promised)


def _passes(
    b: StepInputs, k: BlockArrays, p: Parameters, r: kernels.Rates
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """One block, one micro-batch: forward and backward, split into `_PARTS`."""
    layer = kernels.layer(b, k, p, r)
    tp, cp = communication.tensor_parallel(b, k, p), communication.context_parallel(b, k, p)
    ep = communication.expert_parallel(b, k, p)
    again = b.recompute_full * layer.forward * p["recomputed"] + b.recompute_selective * _selective(
        b, layer
    )
    host = p["host_forward"] * np.where(b.tp > 1, p["host_tp"], 1.0) * kernels.host_share(b, k, p)
    sequence = 1 + 0.5 * b.sequence_parallel  # backward gathers the activations once more
    uneven = layer.routed / 3 * _heaviest_load(b, k)
    forward = {
        "kernels": layer.forward,
        "matmuls": layer.linear_forward + layer.attention_forward,
        "recompute": np.zeros(len(b)),
        "comm.tp": tp,
        "comm.cp": cp,
        "comm.ep": ep,
        "uneven": uneven,
    }
    backward = {
        "kernels": layer.backward,
        "matmuls": layer.linear_backward + layer.attention_backward,
        "recompute": again,
        "comm.tp": tp * sequence + b.recompute_full * tp,
        "comm.cp": 2 * cp,
        "comm.ep": ep + b.recompute_full * ep,
        "uneven": (2 + b.recompute_full) * uneven,
    }
    forward["host"] = _waiting(forward, host, p["queued"] / 3)
    more = (
        1 + b.recompute_full / 2
    )  # kernels of the backward pass: twice the forward ones, and again
    passes = np.maximum(b.layers * b.micro_batches, 1.0)
    beside = b.host_step * b.pp / passes  # at most: a busy device hides it
    launching = host * (p["host_backward"] + b.recompute_full) + beside
    backward["host"] = _waiting(backward, launching, 2 * p["queued"] / 3 * more)
    for parts in (forward, backward):
        parts["copy"] = _fetched(b, k, p, parts)
    return _gathered(b, k, p, forward), _gathered(b, k, p, backward, scatters=True)


def _host_speed(b: StepInputs, p: Parameters) -> Floats:
    return b.host_bytes_per_second * p["host_link"]


def _fetched(b: StepInputs, k: BlockArrays, p: Parameters, parts: dict[str, Floats]) -> Floats:
    """Exposed copies of one pass: a block's own shard of the weights from the host or disk, its
    activations out or in; they run beside the block.
    """
    if not (b.offload_weights + b.offload_activations > 0).any():
        return np.zeros(len(b))
    experts = local_experts(k, b.tp, b.ep, b.etp).weights / weights.expert_replicas(b)
    shard = (weights.kind_parameters(b, k) / weights.shards(b) + experts) * b.param_bytes
    speed = np.where(b.offload_disk > 0, p["disk"], _host_speed(b, p))
    seconds = b.offload_weights * shard / speed
    kept = kernels.tokens(b) * bytes_per_token(b)[0]
    seconds = seconds + b.offload_activations * kept / _host_speed(b, p)
    return np.maximum(seconds - _device(parts) - parts["host"], 0.0)


def _device(parts: dict[str, Floats]) -> Floats:
    """Time that the device is busy with work that the host launches."""
    return np.asarray(
        sum(parts[n] for n in ("kernels", "recompute", "comm.tp", "comm.cp", "comm.ep"))
    )


def _heaviest_load(b: StepInputs, k: BlockArrays) -> Floats:
    """How much more than its share the busiest of the expert-parallel ranks gets.

    Loads of single experts spread around their mean by `expert_spread`; a rank holds several, which
    averages; the largest of n normal draws lies about sqrt(2 ln n) deviations up.
    """
    held = np.where(k.experts > 0, np.maximum(k.experts / b.ep, 1.0), 1.0)
    return np.asarray(b.expert_spread * np.sqrt(2 * np.log(np.maximum(b.ep, 1.0)) / held))


def _waiting(parts: dict[str, Floats], host: Floats, queued: Floats | float) -> Floats:
    """Waiting because the host is late, and between kernels that it launched in time."""
    return _late(_device(parts) + queued, host) + queued


def _late(device: Floats, host: Floats) -> Floats:
    """How much longer a layer takes because the host launches it: soft maximum less device time.

    The fourth power says how sharply the slower one wins.
    """
    return np.sqrt(np.sqrt(_fourth(device) + _fourth(host))) - device


def _fourth(values: Floats) -> Floats:
    squares = values * values
    return squares * squares


def _selective(b: StepInputs, layer: kernels.Layer) -> Floats:
    """Half of the matmuls, or what is cheap: elementwise work (fused) or the scores (unfused)."""
    cheap = np.where(b.attention > 0, 0.7 * layer.other_forward, layer.attention_forward)
    return np.where(b.selective_half > 0, 0.5 * layer.linear_forward + layer.other_forward, cheap)


def _gathered(
    b: StepInputs, k: BlockArrays, p: Parameters, done: dict[str, Floats], *, scatters: bool = False
) -> dict[str, Floats]:
    """Fully sharded weights: gathering hides behind the layer or the layer behind it, never fully.

    A block's weights are gathered at once (fsdp) or matrix by matrix (zero3: DeepSpeed fetches the
    parameters of one module at a time). With a pipeline the weights stay gathered for the whole step;
    that traffic is counted there.
    """
    gathers = (b.sharded > 0) & (b.pp == 1)
    if not gathers.any():
        return done | {"comm.dp": np.zeros(len(b))}
    joined = communication.links(b, p)
    own = Group.of(joined, weights.shards(b), b.tp)
    traffic = _gathered_seconds(b, own, weights.kind_parameters(b, k), scatters=scatters)
    if (b.by_matrix > 0).any():
        apart = sum(
            (
                _gathered_seconds(b, own, x.weights, scatters=scatters)
                for x in matrices(k, b.hidden, b.tp)
            ),
            start=np.zeros(len(b)),
        )
        traffic = np.where(b.by_matrix > 0, apart, traffic)
    experts = local_experts(k, b.tp, b.ep, b.etp).weights
    if experts.any():
        copies = Group.of(joined, weights.expert_replicas(b), b.ep * b.etp)
        theirs = _gathered_seconds(b, copies, experts, scatters=scatters)
        traffic = traffic + np.where(experts > 0, theirs, 0.0)
    traffic = np.where(gathers, traffic, 0.0)
    busy = _device(done) + done["host"] + done["uneven"] + done["copy"]
    return done | {"comm.dp": _beside(b, p, traffic, busy)}


def _gathered_seconds(b: StepInputs, group: Group, parameters: Floats, *, scatters: bool) -> Floats:
    """One pass's collectives of one block: weights gathered; backward, gradients scattered too."""
    seconds = gather_seconds(group, parameters * weights.gathered_bytes(b))
    if not scatters:
        return seconds
    return seconds + gather_seconds(group, parameters * b.grad_bytes * b.trained_share)


def _gathered_ends(b: StepInputs, p: Parameters, head: Floats) -> Floats:
    """Exposed gathering of embedding and head, both passes of one micro-batch, beside the head."""
    gathers = (b.sharded > 0) & (b.pp == 1)
    if not gathers.any():
        return np.zeros(len(b))
    group = Group.of(communication.links(b, p), weights.shards(b), b.tp)
    size = weights.end_parameters(b)
    traffic = 2 * gather_seconds(group, size * weights.gathered_bytes(b))
    traffic = traffic + gather_seconds(group, size * b.grad_bytes * (1 - b.frozen))
    return np.where(gathers, _beside(b, p, traffic, head), 0.0)


def _beside(b: StepInputs, p: Parameters, traffic: Floats, busy: Floats) -> Floats:
    """Exposed part of transfers that run beside work, and slow it; all of it without overlap."""
    exposed = np.maximum(traffic - busy, 0.0) + p["shard_interference"] * np.minimum(busy, traffic)
    return np.where(b.dp_overlap > 0, exposed, traffic)
