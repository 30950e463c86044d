"""Everything a step's time depends on, as one struct of arrays: one row or a million.

Rows may be layouts of one job (`of_job`) or unlike cases (`stack_rows` of single rows): the formulas in
`terms` and `step` do not know the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from computeflow.catalog import Accelerator
from computeflow.catalog.models import Model
from computeflow.cluster import Cluster
from computeflow.errors import InputError
from computeflow.prediction.stack import ATTENTIONS, KERNELS, Stack
from computeflow.workload import Job, Layouts, flops_per_token
from computeflow.workload.flops import mean_context

Floats = NDArray[np.float64]
GENERATIONS = ("ampere", "hopper", "blackwell", "trainium", "tpu", "other")
_GENERATION = {
    "a100": "ampere", "h": "hopper", "gh": "hopper", "b": "blackwell", "gb": "blackwell",
    "trn": "trainium", "trainium": "trainium", "tpu": "tpu",
}  # fmt: skip
_LOW_PRECISION = ("fp8",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Sizes of the model, the layout, the hardware and the stack, one array each."""

    layers: Floats
    hidden: Floats
    heads: Floats
    kv_heads: Floats
    head_dim: Floats
    ffn: Floats
    gates: Floats
    """Matrices into the feed-forward width: 2 if gated, else 1."""
    vocab: Floats
    context: Floats
    """Keys that a query sees on average, over the layers."""
    seq_len: Floats
    flops_per_token: Floats
    palm_flops_per_token: Floats
    tp: Floats
    pp: Floats
    vp: Floats
    cp: Floats
    dp: Floats
    micro_batch: Floats
    micro_batches: Floats
    recompute_full: Floats
    recompute_selective: Floats
    sharded: Floats
    """1 where weights are gathered layer by layer (fsdp, zero3, hsdp)."""
    split_optimizer: Floats
    """1 where the optimizer state is spread over dp (zero1 and above)."""
    gpus: Floats
    domain: Floats
    link_bytes_per_second: Floats
    nic_bytes_per_second: Floats
    hbm_bytes_per_second: Floats
    peak_flops: Floats
    """Dense peak of the matmuls' precision: what the MFU divides by."""
    peak_bf16: Floats
    matmul_ceiling: Floats
    """Best published bf16 matmul rate."""
    generation: Floats
    power_share: Floats
    """Power limit over the one at which the matmul ceiling was measured."""
    age_years: Floats
    """Of the hardware in the middle of the stack's year; launches fall late in theirs."""
    low_precision: Floats
    """1 where the linear layers run in fp8."""
    year: Floats
    attention: Floats
    """Index into `stack.ATTENTIONS`."""
    sequence_parallel: Floats
    tp_overlap: Floats
    dp_overlap: Floats
    kernels: Floats
    """Index into `stack.KERNELS`."""
    casts: Floats
    """Likewise, for fp8 operands."""
    grad_bytes: Floats
    param_bytes: Floats
    state_bytes: Floats
    bucket_bytes: Floats
    keeps_gradients: Floats
    selective_half: Floats
    """1 where selective recomputation repeats half of the matmuls."""

    def __len__(self) -> int:
        return len(self.gpus)


def stack_rows(batches: Sequence[Batch]) -> Batch:
    return Batch(
        **{f.name: np.concatenate([getattr(b, f.name) for b in batches]) for f in fields(Batch)}
    )


def of_job(job: Job, cluster: Cluster, layouts: Layouts, stack: Stack) -> Batch:
    """The layouts of one job on one cluster. They must have passed the gate (`refusals`)."""
    device = cluster.accelerator
    rows = len(layouts)
    gemm = "fp8" if job.precision in _LOW_PRECISION else "bf16"
    generation = generation_of(device.name)
    peak_bf16 = device.peak_flops("bf16")
    ceiling = device.matmul_flops.get("bf16", _USUAL_CEILING[generation] * peak_bf16)
    flops = flops_per_token(job.model, job.seq_len)
    constants = {
        **_shape(job.model, job.seq_len),
        "seq_len": job.seq_len,
        "flops_per_token": flops.total,
        "palm_flops_per_token": flops.palm,
        "domain": cluster.domain,
        "link_bytes_per_second": cluster.link_bytes_per_second
        or cluster.nic_bytes_per_second
        or 1e9,
        "nic_bytes_per_second": cluster.nic_bytes_per_second or 1e9,
        "hbm_bytes_per_second": device.hbm_bytes_per_second,
        "peak_flops": device.peak_flops(gemm),
        "peak_bf16": peak_bf16,
        "matmul_ceiling": ceiling,
        "generation": GENERATIONS.index(generation),
        "power_share": _power_share(device),
        "age_years": max(stack.year - device.launch_year - 0.25, 0.0),
        "low_precision": gemm == "fp8",
        "year": stack.year,
        "attention": ATTENTIONS.index(stack.attention),
        "sequence_parallel": stack.sequence_parallel,
        "tp_overlap": stack.tp_overlap,
        "dp_overlap": stack.dp_overlap,
        "kernels": KERNELS.index(stack.kernels),
        "casts": KERNELS.index(stack.casts or stack.kernels),
        "grad_bytes": stack.grad_bytes,
        "param_bytes": stack.param_bytes,
        "state_bytes": stack.state_bytes,
        "bucket_bytes": stack.bucket_bytes,
        "keeps_gradients": stack.keeps_gradients,
        "selective_half": stack.selective == "half",
    }
    arrays = {name: np.full(rows, value, np.float64) for name, value in constants.items()}
    for name in ("tp", "pp", "vp", "cp", "dp", "micro_batch", "gpus"):
        arrays[name] = np.asarray(getattr(layouts, name), np.float64)
    arrays["micro_batches"] = np.asarray(layouts.micro_batches(job), np.float64)
    arrays["recompute_full"] = layouts.has_recompute("full").astype(np.float64)
    arrays["recompute_selective"] = layouts.has_recompute("selective").astype(np.float64)
    arrays["sharded"] = layouts.has_sharding("fsdp", "zero3", "hsdp").astype(np.float64)
    arrays["split_optimizer"] = (~layouts.has_sharding("ddp")).astype(np.float64)
    return Batch(**arrays)


_USUAL_CEILING = {
    "ampere": 0.87, "hopper": 0.80, "blackwell": 0.775, "trainium": 0.8, "tpu": 0.9, "other": 0.6,
}  # fmt: skip
"""Share of the dense peak that large matmuls reach: the catalog's measured ceilings, by family."""
_CEILING_WATTS = {
    "a100": 400.0, "h100": 700.0, "h200": 700.0, "h800": 700.0, "gb200": 1200.0, "gb300": 1200.0,
}  # fmt: skip
"""Power at which the ceiling used for a device was measured; GB300 borrows the GB200's."""


def _power_share(device: Accelerator) -> float:
    usual = _CEILING_WATTS.get(device.name.split("-")[0])
    return 1.0 if usual is None or device.tdp_watts is None else device.tdp_watts / usual


def generation_of(accelerator: str) -> str:
    letters = accelerator.split("-")[0].rstrip("0123456789")
    for prefix in (accelerator.split("-")[0], letters):
        if prefix in _GENERATION:
            return _GENERATION[prefix]
    return "other"


def _shape(model: Model, seq_len: int) -> dict[str, float]:
    """Sizes of a dense transformer; what this predictor cannot do yet is refused by name."""
    if any(b.experts or b.state_space or b.latent or b.compressed for b in model.blocks):
        raise InputError(
            f"{model.name}: experts, state-space and latent attention are not predicted yet"
        )
    blocks = [b for b in model.blocks if b.attention and b.dense]
    if len(blocks) != len(model.blocks):
        raise InputError(f"{model.name}: blocks without attention or feed-forward part")
    first = blocks[0]
    assert first.attention is not None
    assert first.dense is not None
    layers = sum(b.count for b in blocks)
    context = sum(
        b.count * mean_context(seq_len, b.attention.window or b.attention.chunk)
        for b in blocks
        if b.attention is not None
    )
    return {
        "layers": layers,
        "hidden": model.hidden,
        "heads": first.attention.heads,
        "kv_heads": first.attention.kv_heads,
        "head_dim": first.attention.head_dim,
        "ffn": first.dense.width,
        "gates": 2.0 if first.dense.gated else 1.0,
        "vocab": model.vocab,
        "context": context / layers,
    }
