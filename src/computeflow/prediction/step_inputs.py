"""Everything a step's time depends on, as one struct of arrays: one row or a million.

Rows may be layouts of one job (`of_job`) or unlike cases (`stack_rows` of single rows): the formulas in
`kernels`, `communication` and `step` do not know the difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from computeflow.catalog import Accelerator
from computeflow.catalog.parameters import count_parameters
from computeflow.cluster import Cluster
from computeflow.cluster.machine import MAX_TIERS
from computeflow.prediction.blocks import MAX_KINDS, BlockArrays, Floats, absent, kinds_of, matrices
from computeflow.prediction.stack import ATTENTIONS, GRAPHS, KERNELS, SAVES, Stack
from computeflow.workload import Job, Layouts, flops_per_token

GENERATIONS = ("ampere", "hopper", "blackwell", "trainium", "tpu", "cdna", "ada", "other")
_GENERATION = {
    "a100": "ampere", "a800": "ampere", "a30": "ampere", "a": "ada", "l": "ada", "rtx": "ada",
    "h": "hopper", "gh": "hopper", "b": "blackwell",
    "gb": "blackwell", "trn": "trainium", "trainium": "trainium", "tpu": "tpu", "mi": "cdna",
}  # fmt: skip
_FULL_PRECISION = ("fp32", "tf32")


@dataclass(frozen=True, slots=True)
class LowPrecision:
    """Matmuls in fewer than 16 bits, by how their operands are scaled."""

    rate: float
    casts: float


LOW_PRECISIONS = {
    "fp8": LowPrecision(0.90, 1.0),
    "fp8-rowwise": LowPrecision(0.58, 1.2),
    "fp8-block": LowPrecision(0.84, 1.2),
    "mxfp8": LowPrecision(0.84, 1.2),
    "nvfp4": LowPrecision(0.58, 1.5),
    "int8": LowPrecision(0.80, 1.0),
}
"""Rates over the peak's gain. fp8 with one scale per tensor: our H200 keeps 1.80 of 2. The others are
relative to it as a prototype found on published runs (block-scaled 0.93, rowwise 0.65, nvfp4 0.58 of
its peak); cast traffic grows with the scales (one per 32 or 128 elements). int8: a judgement."""
_QLORA_BYTES = 0.53
"""Bytes of a frozen weight: 4 bits, and double-quantised scales (0.127 bits, arXiv:2305.14314)."""
PEAKS = {"fp8-rowwise": "fp8", "fp8-block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
"""Precision whose dense peak a precision's matmuls are measured by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """Sizes of the model, the layout, the hardware and the stack, one array each."""

    layers: Floats
    hidden: Floats
    kinds: tuple[BlockArrays, ...]
    """Kinds of blocks; as many for every row, absent ones with a count of zero."""
    vocab: Floats
    losses: Floats
    """Heads with a loss: one, and one for every token that is predicted further ahead."""
    expert_spread: Floats
    seq_len: Floats
    flops_per_token: Floats
    palm_flops_per_token: Floats
    tp: Floats
    pp: Floats
    vp: Floats
    cp: Floats
    dp: Floats
    ep: Floats
    etp: Floats
    replicas: Floats
    """Groups that each hold the sharded weights once (hsdp)."""
    micro_batch: Floats
    micro_batches: Floats
    recompute_full: Floats
    recompute_selective: Floats
    sharded: Floats
    """1 where weights are gathered layer by layer (fsdp, zero3, hsdp)."""
    by_matrix: Floats
    """1 where they are gathered matrix by matrix (zero3), rather than a block at once."""
    split_optimizer: Floats
    """1 where the optimizer state is spread over dp (zero1 and above)."""
    schedule: Floats
    """Index into `layout.SCHEDULES`."""
    context_exchange: Floats
    """1 where context-parallel ranks exchange heads for tokens instead of passing a ring."""
    offload_state: Floats
    offload_weights: Floats
    offload_activations: Floats
    offload_disk: Floats
    """1 where what is offloaded lies on disk, not in the host's memory."""
    frozen: Floats
    """1 where the weights are not trained, only low-rank updates beside them."""
    adapts_all: Floats
    """1 where low-rank updates stand beside all matrices of a layer, not beside attention's alone."""
    weight_share: Floats
    """Share of a layer's FLOPs that make the gradients of its weights."""
    trained_share: Floats
    """Share of a layer's parameters that are trained."""
    loss_chunks: Floats
    host_bytes_per_second: Floats
    """Speed of one device to its host's memory, one direction."""
    zero2: Floats
    """1 where gradients are spread over dp after every micro-batch."""
    spared_state: Floats
    """Bytes per parameter that the optimizer keeps less than AdamW would."""
    orthogonalises: Floats
    """1 for Muon."""
    gpus: Floats
    tier_devices: Floats
    """Devices that each tier of links joins, inside out: one row of `MAX_TIERS` per case."""
    tier_bytes_per_second: Floats
    """Speed of one device through that tier; infinite where there are fewer tiers."""
    input_seconds: Floats
    """Time to read one step's data, all devices together; 0 where storage is unknown."""
    checkpoint_seconds: Floats
    """Time to write checkpoints, spread over the steps between two."""
    tdp_watts: Floats
    """Power limit of a device; not a number where it is unknown."""
    hbm_bytes_per_second: Floats
    peak_flops: Floats
    """Dense peak of the matmuls' precision: what the MFU divides by."""
    peak_bf16: Floats
    attention_peak: Floats
    """Dense peak of the fused attention's precision: bf16, or fp32 where activations are fp32 (tf32
    too: the kernel does not round its operands)."""
    matmul_ceiling: Floats
    """Best published bf16 matmul rate."""
    generation: Floats
    maturity: Floats
    """Share of the speed by these formulas that such stacks reach on such devices."""
    power_share: Floats
    """Power limit over the one at which the matmul ceiling was measured."""
    age_years: Floats
    """Age of the hardware in the middle of the stack's year; launches fall late in theirs."""
    low_precision: Floats
    """1 where the linear layers run in fewer than 16 bits."""
    low_rate: Floats
    """Share of the peak's gain over bf16 that such matmuls keep."""
    cast_share: Floats
    """Traffic of making their operands, over that of fp8 with one scale per tensor."""
    element_bytes: Floats
    """Bytes of an activation: 4 in full precision (fp32, tf32), else 2."""
    year: Floats
    attention: Floats
    """Index into `stack.ATTENTIONS`."""
    sequence_parallel: Floats
    tp_overlap: Floats
    ep_overlap: Floats
    dedup: Floats
    """1 where a token is sent once to each node, however many of its experts are there."""
    graphs: Floats
    """Index into `stack.GRAPHS`."""
    dp_overlap: Floats
    kernels: Floats
    """Index into `stack.KERNELS`."""
    casts: Floats
    """Likewise, for fp8 operands."""
    host_step: Floats
    """Host seconds of a step beside its layers."""
    host_factor: Floats
    """Host time of the stack's own code over that of an eager trainer of ours."""
    grad_bytes: Floats
    param_bytes: Floats
    state_bytes: Floats
    """Optimizer state, per parameter of a layer."""
    master_bytes: Floats
    """fp32 weights within that state, beside the ones that are trained with."""
    end_state_bytes: Floats
    """The same, per parameter of the embedding and the head."""
    half_grad_bytes: Floats
    splits_gradients: Floats
    residual_bytes: Floats
    """Bytes of an element of the residual stream: 4 under autocast."""
    cast_bytes: Floats
    """Bytes per parameter of a matrix in the copies that autocast makes of fp32 weights."""
    logit_bytes: Floats
    """Bytes per logit at the loss: 12 in eager torch and 4 compiled, measured on an H200; 10 where
    the loss is split over the vocabulary (bf16 logits, an fp32 copy and its softmax)."""
    saves: Floats
    """Index into `stack.SAVES`."""
    tied: Floats
    """1 where the head is the embedding."""
    balances_head: Floats
    bucket_bytes: Floats
    keeps_gradients: Floats
    selective_half: Floats
    """1 where selective recomputation repeats half of the matmuls."""

    def __len__(self) -> int:
        return len(self.gpus)

    @property
    def domain(self) -> Floats:
        """Devices that the innermost links join."""
        return np.asarray(self.tier_devices[:, 0])

    @property
    def present(self) -> list[BlockArrays]:
        """Kinds that some row has."""
        return [kind for kind in self.kinds if kind.count.any()]


def stack_rows(batches: Sequence[StepInputs]) -> StepInputs:
    arrays = {name: np.concatenate([getattr(b, name) for b in batches]) for name in _ARRAYS}
    kinds = tuple(
        BlockArrays(
            **{
                f.name: np.concatenate([getattr(b.kinds[i], f.name) for b in batches])
                for f in fields(BlockArrays)
            }
        )
        for i in range(MAX_KINDS)
    )
    return StepInputs(**arrays, kinds=kinds)


def take(inputs: StepInputs, rows: NDArray[np.int64]) -> StepInputs:
    def of_rows(values: Floats) -> Floats:
        return values[rows] if len(values) == len(inputs) else values

    kinds = tuple(
        BlockArrays(**{f.name: of_rows(getattr(kind, f.name)) for f in fields(BlockArrays)})
        for kind in inputs.kinds
    )
    return StepInputs(**{name: of_rows(getattr(inputs, name)) for name in _ARRAYS}, kinds=kinds)


_ARRAYS = tuple(f.name for f in fields(StepInputs) if f.name != "kinds")


def _kept_bytes(job: Job, stack: Stack) -> Stack:
    """The stack with the bytes that this job keeps of a parameter."""
    if job.precision in _FULL_PRECISION:
        stack = replace(stack, param_bytes=4.0, grad_bytes=4.0, state_bytes=8.0)
    return replace(stack, param_bytes=_QLORA_BYTES) if job.training == "qlora" else stack


def _device_constants(device: Accelerator, precision: str) -> dict[str, float]:
    generation, full = generation_of(device.name), precision in _FULL_PRECISION
    peak_bf16 = device.peak_flops("bf16" if "bf16" in device.dense_flops else "fp16")
    return {
        "tdp_watts": math.nan if device.tdp_watts is None else device.tdp_watts,
        "hbm_bytes_per_second": device.hbm_bytes_per_second,
        "peak_flops": device.peak_flops(PEAKS.get(precision, precision)),
        "peak_bf16": peak_bf16,
        "attention_peak": device.peak_flops("fp32") if full else peak_bf16,
        "matmul_ceiling": device.matmul_flops.get("bf16", USUAL_CEILING[generation] * peak_bf16),
        "generation": GENERATIONS.index(generation),
        "power_share": _power_share(device),
        "element_bytes": 4.0 if full else 2.0,
    }


def of_job(
    job: Job, cluster: Cluster, layouts: Layouts, stack: Stack, maturity: float = 1.0
) -> StepInputs:
    """The layouts of one job on one cluster. They must have passed the gate (`refusals`).

    `maturity` is what measured runs say of the stack on the device (`evidence.outlook_of`).
    """
    device = cluster.accelerator
    rows = len(layouts)
    stack = _kept_bytes(job, stack)
    low = LOW_PRECISIONS.get(job.precision, LOW_PRECISIONS["fp8"])
    flops = flops_per_token(job.model, job.seq_len, prediction=job.multi_token)
    # the gradients of weights that are frozen are not part of what the training needs
    spared = flops.matmul / 3 * (1 - _trained_share(job))
    kinds = kinds_of(job.model, job.seq_len, prediction=job.multi_token)
    kinds += [absent() for _ in range(MAX_KINDS - len(kinds))]
    constants = {
        "layers": sum(kind["count"] for kind in kinds),
        "hidden": job.model.hidden,
        "vocab": job.model.vocab,
        "losses": 1 + (len(job.model.prediction_blocks) if job.multi_token else 0),
        "expert_spread": job.expert_spread,
        "seq_len": job.seq_len,
        "flops_per_token": flops.total - spared,
        "palm_flops_per_token": flops.palm - spared,
        "frozen": job.training != "full",
        "adapts_all": job.lora_targets == "all",
        "weight_share": (flops.matmul / 3 - spared) / (flops.total - spared),
        "trained_share": _trained_share(job),
        "loss_chunks": job.loss_chunks,
        "host_bytes_per_second": cluster.host_bytes_per_second,
        **_storage_seconds(job, cluster, stack),
        **_device_constants(device, job.precision),
        "maturity": maturity,
        "age_years": max(stack.year - device.launch_year - 0.25, 0.0),
        "low_precision": job.precision in LOW_PRECISIONS,
        "low_rate": low.rate,
        "cast_share": low.casts,
        "year": stack.year,
        "attention": ATTENTIONS.index(stack.attention),
        "sequence_parallel": stack.sequence_parallel,
        "tp_overlap": stack.tp_overlap,
        "ep_overlap": stack.ep_overlap,
        "dedup": stack.dispatcher == "deduplicating",
        "graphs": GRAPHS.index(stack.graphs),
        "dp_overlap": stack.dp_overlap,
        "kernels": KERNELS.index(stack.kernels),
        "host_factor": stack.host_factor,
        "host_step": stack.host_step,
        "casts": KERNELS.index(stack.casts or stack.kernels),
        "grad_bytes": stack.grad_bytes,
        "param_bytes": stack.param_bytes,
        **_memory_constants(job, stack),
        "bucket_bytes": stack.bucket_bytes,
        "keeps_gradients": stack.keeps_gradients,
        "selective_half": stack.selective == "half",
    }
    arrays = {name: _same(value) for name, value in constants.items()}
    arrays["tier_devices"], arrays["tier_bytes_per_second"] = _tiers(cluster, rows)
    for name in ("tp", "pp", "vp", "cp", "dp", "ep", "etp", "replicas", "micro_batch", "gpus"):
        arrays[name] = np.asarray(getattr(layouts, name), np.float64)
    arrays["micro_batches"] = np.asarray(layouts.micro_batches(job), np.float64)
    arrays |= {name: layouts.has(*choice).astype(np.float64) for name, choice in _FLAGS.items()}
    arrays["schedule"] = layouts.schedule.astype(np.float64)
    arrays["ep_overlap"] = np.maximum(arrays["ep_overlap"], layouts.has("schedule", "dualpipe"))
    half = arrays["element_bytes"] == 2
    autocast = half & (arrays["param_bytes"] >= 4) & (arrays["sharded"] == 0)
    arrays["residual_bytes"] = np.where(autocast, 4.0, 2.0)
    arrays["cast_bytes"] = np.where(autocast, 2.0, 0.0)
    structs = tuple(
        BlockArrays(**{name: _same(value) for name, value in kind.items()}) for kind in kinds
    )
    return StepInputs(**arrays, kinds=structs)


def _same(value: float) -> Floats:
    """The value for every row, as one row: what is computed of such values alone stays one row, too."""
    return np.array([value], np.float64)


_FLAGS = {
    "recompute_full": ("recompute", "full"),
    "recompute_selective": ("recompute", "selective"),
    "sharded": ("sharding", "fsdp", "zero3", "hsdp"),
    "by_matrix": ("sharding", "zero3"),
    "split_optimizer": ("sharding", "zero1", "zero2", "zero3", "fsdp", "hsdp"),
    "zero2": ("sharding", "zero2"),
    "context_exchange": ("context", "all-to-all"),
    "offload_state": ("offload", "optimizer", "parameters", "nvme"),
    "offload_weights": ("offload", "parameters", "nvme"),
    "offload_activations": ("offload", "activations"),
    "offload_disk": ("offload", "nvme"),
}
"""Fields that are 1 where a choice of the layout is one of the names."""


def _memory_constants(job: Job, stack: Stack) -> dict[str, float]:
    """Inputs of memory alone: the optimizer's state, the list of saved tensors, the loss."""
    layer, end = _moment_bytes(job.optimizer, stack.moment_bytes)
    compiled = stack.kernels == "compiled"
    saves: str = stack.saves
    if saves == "torch" and compiled:
        saves = "torch-compiled-fp8" if job.precision == "fp8" else "torch-compiled"
    fused_loss = compiled and stack.compiled_loss and stack.year >= 2025
    eager = stack.saves in ("torch", "torchtitan")
    return {
        "spared_state": stack.moment_bytes - layer,
        "orthogonalises": job.optimizer == "muon",
        "state_bytes": stack.master_bytes + layer,
        "master_bytes": stack.master_bytes,
        "end_state_bytes": stack.master_bytes + end,
        "half_grad_bytes": stack.half_grad_bytes,
        "splits_gradients": stack.splits_gradients,
        "logit_bytes": 4.0 if fused_loss else 12.0 if eager else 10.0,
        "saves": SAVES.index(saves),
        "tied": job.model.tied,
        "balances_head": stack.balances_head,
    }


def _moment_bytes(optimizer: str, moments: float) -> tuple[float, float]:
    """Bytes of the moments per parameter of a layer, and of the embedding and the head.

    8-bit Adam: a byte per moment and an fp32 scale per block of 256 (bitsandbytes). Muon: one moment
    for matrices, AdamW for the rest (arXiv:2502.16982). SGD: none.
    """
    if optimizer == "sgd":
        return 0.0, 0.0
    if optimizer == "adam8bit":
        eight = 2 * (1 + 4 / 256)
        return eight, eight
    return (moments / 2 if optimizer == "muon" else moments), moments


def _trained_share(job: Job) -> float:
    """Low-rank updates beside matrices of a layer, rank x (rows + columns), over all its weights."""
    if job.training == "full":
        return 1.0
    whole = lora = 0.0
    for numbers in kinds_of(job.model, job.seq_len, prediction=False):
        for times, rows, columns in _shapes(numbers, job.model.hidden):
            whole += numbers["count"] * times * rows * columns
        targets = numbers | ({"ffn": 0.0, "experts": 0.0} if job.lora_targets != "all" else {})
        for times, rows, columns in _shapes(targets, job.model.hidden):
            lora += numbers["count"] * times * job.lora_rank * (rows + columns)
    return min(lora / whole, 1.0)


def _shapes(numbers: dict[str, float], hidden: int) -> list[tuple[float, float, float]]:
    """Matrices of one block of a kind: how many, rows, columns."""
    ones = np.ones(1)
    kind = BlockArrays(**{name: np.full(1, float(value)) for name, value in numbers.items()})
    shapes = [
        (1.0, float(x.rows[0]), float(x.columns[0])) for x in matrices(kind, hidden * ones, ones)
    ]
    count, width, inner = (numbers[n] for n in ("experts", "expert_width", "expert_hidden"))
    shapes += [(count, numbers["gates"] * width, inner), (count, inner, width)]
    return [shape for shape in shapes if math.prod(shape) > 0]


def _storage_seconds(job: Job, cluster: Cluster, stack: Stack) -> dict[str, float]:
    """Reading is hidden behind the step while it lasts; a checkpoint is written while all wait."""
    read, write = (cluster.storage_bytes_per_second(write=kind) for kind in (False, True))
    size = count_parameters(job.model).total * (stack.param_bytes + stack.state_bytes)
    if (
        job.training != "full"
    ):  # the updates and their state; the frozen weights are on disk already
        size *= _trained_share(job)
    every = job.checkpoint_steps
    return {
        "input_seconds": job.step_tokens * job.bytes_per_token / read if read else 0.0,
        "checkpoint_seconds": size / write / every if write and every else 0.0,
    }


def _tiers(cluster: Cluster, rows: int) -> tuple[Floats, Floats]:
    """The cluster's tiers, the same for every row, filled up with ones that nothing crosses."""
    missing = MAX_TIERS - len(cluster.tiers)
    devices = [float(tier.devices) for tier in cluster.tiers] + missing * [np.inf]
    speeds = [tier.bytes_per_second for tier in cluster.tiers] + missing * [np.inf]
    shape = (rows, MAX_TIERS)
    return np.broadcast_to(devices, shape), np.broadcast_to(speeds, shape)


USUAL_CEILING = {
    "ampere": 0.87,
    "hopper": 0.80,
    "blackwell": 0.775,
    "trainium": 0.8,
    "tpu": 0.9,
    "cdna": 0.6,
    "ada": 0.92,
    "other": 0.6,
}
"""Share of the dense peak that large matmuls reach: the catalog's measured ceilings, by family. ada,
with the cards of Ampere's time that have no HBM: cuBLAS on an L20 reaches 105 to 115 of 119.5 TFLOP/s
(DefTruth/CUDA-Learn-Notes, hgemm, 2024)."""
_CEILING_WATTS = {
    "a100": 400.0,
    "a800": 400.0,
    "h100": 700.0,
    "h200": 700.0,
    "h800": 700.0,
    "gb200": 1200.0,
    "gb300": 1200.0,
}
"""Power at which the ceiling used for a device was measured; GB300 borrows the GB200's."""


def power_limit_known(device: Accelerator) -> bool:
    """Whether the power at which the device's best matmul was measured is known: else a lower limit
    changes nothing here.
    """
    return device.name.split("-")[0] in _CEILING_WATTS


def _power_share(device: Accelerator) -> float:
    usual = _CEILING_WATTS.get(device.name.split("-")[0])
    return 1.0 if usual is None or device.tdp_watts is None else device.tdp_watts / usual


def generation_of(accelerator: str) -> str:
    name = accelerator.split("-")[0]
    letters = "".join(takewhile(str.isalpha, name))
    return _GENERATION.get(name) or _GENERATION.get(letters, "other")
