"""Activations kept for the backward pass, as data: a row per tensor, a list per style of code.

A row says how many bytes a token costs for each unit of a width, how that width is split, and under
which recomputation the tensor is kept. `LISTS` names the lists; `bytes_per_token` adds a list up.

Sources. `torch`: counted with `torch.autograd.graph.saved_tensors_hooks` on the reference trainer
(computeflow.lab.trainer) on a CPU; its norms, which keep fp32 there and the bf16 input on CUDA, from
H200 runs. `torch-compiled`, `-fp8`: differences between the same H200 runs; inductor computes
pointwise results again. `megatron-2021`: arXiv:2205.05198, section 4. `nanotron`: models/llama.py and
parallel/tensor_parallel/functional.py. `torchtitan`: the eager list of `torch`, and what
distributed/activation_checkpoint.py keeps: attention and every second matmul. Neither measured nor
read from code: `megatron` (fused norms, rotation and SwiGLU, flash attention, no dropout) and `graph`
(XLA, Neuron).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from computeflow.prediction.blocks import BlockArrays, Floats, local_experts
from computeflow.prediction.stack import SAVES
from computeflow.prediction.step_inputs import StepInputs
from computeflow.workload.layout import RECOMPUTES

Width = Literal["residual", "hidden", "q", "kv", "ffn", "gate", "heads", "scores", "fp32_scores"]
_WIDTHS: tuple[Width, ...] = get_args(Width)
"""residual: hidden, 4 bytes where autocast keeps it in fp32 (rows count 2); hidden: split along the
sequence where the stack does that; q, kv: heads times their size; ffn: the feed-forward width; gate:
the same, absent without a gate; heads: one number per head; scores: one per head and key, unfused
attention only; fp32_scores: likewise, where the fused kernel does not take fp32. All but the first
two are split by tp."""


@dataclass(frozen=True, slots=True)
class SavedTensor:
    module: str
    tensor: str
    width: Width
    nbytes: float
    """Bytes per token and unit of width."""
    kept: tuple[str, ...] = ("none",)
    """The recomputations under which it stays."""


ALWAYS = ("none", "selective", "full")
_BOTH = ("none", "selective")
_SELECTIVE = ("selective",)

_BLOCK = (SavedTensor("input norm", "input", "residual", 2, ALWAYS),)
_FLASH = (
    SavedTensor("attention", "output, the output projection's input", "q", 2, _BOTH),
    SavedTensor("attention", "log-sum-exp", "heads", 4, _BOTH),
)
_PRODUCTS = (
    SavedTensor("qkv projection", "output", "q", 2, _SELECTIVE),
    SavedTensor("qkv projection", "output", "kv", 4, _SELECTIVE),
    SavedTensor("output projection", "output", "hidden", 2, _SELECTIVE),
    SavedTensor("up and gate", "output", "ffn", 2, _SELECTIVE),
    SavedTensor("up and gate", "output", "gate", 2, _SELECTIVE),
    SavedTensor("down projection", "output", "hidden", 2, _SELECTIVE),
)
_HALF_PRODUCTS = tuple(
    SavedTensor(row.module, "output, of every second matmul", row.width, row.nbytes / 2, _SELECTIVE)
    for row in _PRODUCTS
)
_TORCH_ATTENTION = (
    SavedTensor("qkv projection", "input", "hidden", 2),
    SavedTensor("qkv projection", "output, which v is a view of", "q", 2),
    SavedTensor("qkv projection", "output, which v is a view of", "kv", 4),
    SavedTensor("rotation", "q", "q", 2),
    SavedTensor("rotation", "k", "kv", 2),
    *_FLASH,
    SavedTensor("attention", "softmax in fp32 and its bf16 copy", "scores", 6),
    SavedTensor(
        "attention",
        "softmax, of the kernel that grouped queries in fp32 fall back to",
        "fp32_scores",
        2,
    ),
)
_TORCH_MLP = (
    SavedTensor("post norm", "input", "residual", 2),
    SavedTensor("up and gate", "input", "hidden", 2),
    SavedTensor("activation", "up", "ffn", 2),
    SavedTensor("activation", "gate", "gate", 2),
    SavedTensor("down projection", "input", "ffn", 2),
)
_MATMUL_INPUTS = (
    SavedTensor("qkv projection", "input", "hidden", 2),
    SavedTensor("up and gate", "input", "hidden", 2),
    SavedTensor("down projection", "input", "ffn", 2),
)
_ACTIVATED = (SavedTensor("activation", "activated gate", "gate", 2),)

LISTS: dict[str, tuple[SavedTensor, ...]] = {
    "torch": (*_BLOCK, *_TORCH_ATTENTION, *_TORCH_MLP, *_ACTIVATED, *_PRODUCTS),
    "torch-compiled": (*_BLOCK, *_TORCH_ATTENTION, *_TORCH_MLP, *_PRODUCTS),
    "torch-compiled-fp8": (  # the casts hide norms and products from the matmul: computed again
        *_BLOCK,
        *(row for row in (*_TORCH_ATTENTION, *_TORCH_MLP) if row not in _MATMUL_INPUTS),
        *_PRODUCTS,
    ),
    "torchtitan": (*_BLOCK, *_TORCH_ATTENTION, *_TORCH_MLP, *_ACTIVATED, *_HALF_PRODUCTS),
    "megatron-2021": (
        *_BLOCK,
        SavedTensor("qkv projection", "input", "hidden", 2, _BOTH),
        SavedTensor("attention", "q", "q", 2, _BOTH),
        SavedTensor("attention", "k and v", "kv", 4, _BOTH),
        SavedTensor("attention", "softmax, its dropout mask and output", "scores", 5),
        SavedTensor("output projection", "input", "q", 2, _BOTH),
        SavedTensor("output projection", "dropout mask", "hidden", 1, _BOTH),
        SavedTensor("post norm", "input", "residual", 2, _BOTH),
        SavedTensor("up", "input", "hidden", 2, _BOTH),
        SavedTensor("activation", "input", "ffn", 2, _BOTH),
        SavedTensor("activation", "gate", "gate", 2, _BOTH),
        SavedTensor("down projection", "input", "ffn", 2, _BOTH),
        SavedTensor("down projection", "dropout mask", "hidden", 1, _BOTH),
    ),
    "megatron": (
        *_BLOCK,
        SavedTensor("qkv projection", "input", "hidden", 2),
        SavedTensor("rotation", "q", "q", 2, _BOTH),
        SavedTensor("rotation", "k, and v", "kv", 4, _BOTH),
        *_FLASH,
        SavedTensor("attention", "softmax, its dropout mask and output", "scores", 5),
        SavedTensor("post norm", "input", "residual", 2, _BOTH),
        SavedTensor("up and gate", "input", "hidden", 2),
        SavedTensor("activation", "up", "ffn", 2, _BOTH),
        SavedTensor("activation", "gate", "gate", 2, _BOTH),
        SavedTensor("down projection", "input", "ffn", 2),
    ),
    "nanotron": (
        *_BLOCK,
        SavedTensor("qkv projection", "input", "hidden", 2, _BOTH),
        SavedTensor("rotation", "q", "q", 2, _BOTH),
        SavedTensor("rotation", "k, and v", "kv", 4, _BOTH),
        *_FLASH,
        SavedTensor("attention", "softmax in fp32 and its bf16 copy", "scores", 6),
        SavedTensor("post norm", "input", "residual", 2, _BOTH),
        SavedTensor("up and gate", "input", "hidden", 2, _BOTH),
        SavedTensor("activation", "up", "ffn", 2, _BOTH),
        SavedTensor("activation", "gate", "gate", 2, _BOTH),
        *_ACTIVATED,
        SavedTensor("down projection", "input", "ffn", 2, _BOTH),
    ),
    "graph": (*_BLOCK, *_TORCH_ATTENTION, *_TORCH_MLP, *_HALF_PRODUCTS),
}


def _coefficients() -> Floats:
    """Bytes per unit of width, for every list and recomputation: shape (lists, 3, widths)."""
    table = np.zeros((len(SAVES), len(RECOMPUTES), len(_WIDTHS)))
    for index, name in enumerate(SAVES):
        for row in LISTS[name]:
            for recompute in row.kept:
                table[index, RECOMPUTES.index(recompute), _WIDTHS.index(row.width)] += row.nbytes
    return table


_TABLE = _coefficients()
_COLUMNS = np.ascontiguousarray(_TABLE.reshape(-1, len(_WIDTHS)).T)
"""By width: its coefficients for every list and recomputation, one after the other."""


def widths(b: StepInputs, k: BlockArrays) -> dict[str, Floats]:
    """Widths of the kept tensors of one block on one tensor-parallel rank, by name.

    Routed experts keep what a feed-forward part keeps, for every copy of a token, and the copies
    themselves; latent attention keeps queries, keys and values as they are attended.
    """
    split = np.where(b.sequence_parallel > 0, b.tp, 1.0)
    kv_heads = np.where(k.heads > 0, np.maximum(k.kv_heads / b.tp, 1.0), 0.0)  # a head is not cut
    scores = k.heads * b.seq_len / b.tp
    fallback = (b.element_bytes > 2) & (k.kv_heads < k.heads)
    local = local_experts(k, b.tp, b.ep, b.etp)
    inner = k.ffn / b.tp + local.routed * local.width
    copies = local.routed * k.expert_hidden
    return {
        "residual": b.hidden / split * b.residual_bytes / 2,
        "hidden": b.hidden / split + copies,
        "q": k.heads * k.qk_dim / b.tp + k.scan_width / b.tp,
        "kv": kv_heads * (k.qk_dim + k.value_dim) / 2,
        "ffn": inner,
        "gate": (k.gates - 1) * inner,
        "heads": k.heads / b.tp,
        "scores": np.where(b.attention == 0, scores, 0.0),
        "fp32_scores": np.where((b.attention > 0) & fallback, scores, 0.0),
    }


def _staying(b: StepInputs, k: BlockArrays, every: dict[str, Floats]) -> list[Floats]:
    """Widths that stay under recomputation; for latent attention, the latents when selective
    (Megatron's mla_up_proj, arXiv:2412.19437, section 3.2.3).
    """
    latent = (k.kv_rank > 0) & (b.recompute_selective > 0)
    if not latent.any():
        return list(every.values())
    narrow = {"q": k.q_rank, "kv": (k.kv_rank + k.rope_dim) / 2}
    return [np.where(latent, narrow.get(name, width), width) for name, width in every.items()]


def bytes_per_token(b: StepInputs) -> tuple[Floats, Floats]:
    """Bytes that the mean block keeps per token, and those that it keeps while it is worked on."""
    level = np.where(b.recompute_full > 0, 2, np.where(b.recompute_selective > 0, 1, 0))
    unused = b.saves.astype(int) * len(RECOMPUTES)
    used = unused + level
    kept, whole = np.zeros(len(b)), np.zeros(len(b))
    for k in b.present:
        every = widths(b, k)
        for column, (width, stays) in enumerate(
            zip(every.values(), _staying(b, k, every), strict=True)
        ):
            kept += k.count * _COLUMNS[column].take(used) * stays
            whole += k.count * _COLUMNS[column].take(unused) * width
    wide = b.element_bytes / 2 / b.layers  # rows count bf16
    return kept * wide, whole * wide
