"""The software a step runs on, as the capabilities that its time depends on; dated presets.

An unknown stack is today's practice with the widest range, and the prediction says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from computeflow.errors import UnknownNameError
from computeflow.workload.layout import Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    name: str
    year: float
    """Year of the release; kernels get better, and new hardware is slower at first."""
    attention: Literal["unfused", "flash1", "flash2", "latest"] = "latest"
    """unfused: scores through memory; flash1, flash2: FlashAttention (and Triton's) of 2022 and of
    2023; latest: kernels made for the generation (FlashAttention-3, cuDNN)."""
    sequence_parallel: bool = True
    """With tensor parallelism, norms and residuals are split along the sequence."""
    tp_overlap: bool = True
    dp_overlap: bool = True
    ep_overlap: bool = False
    """Tokens travel to their experts while another micro-batch computes."""
    dispatcher: Literal["alltoall", "deduplicating"] = "alltoall"
    """deduplicating (DeepEP, HybridEP): a token crosses the network once per node, however many of its
    experts are there."""
    graphs: Literal["none", "blocks", "step"] = "none"
    """CUDA graphs: attention and routing block by block, or the whole step."""
    kernels: Literal["eager", "fused", "compiled", "graph"] = "fused"
    """eager: one launch per operation; fused: hand-fused norms, activations and rotations;
    compiled: torch.compile block by block; graph: one program per step (XLA, CUDA graphs)."""
    casts: Literal["eager", "fused", "compiled", "graph"] | None = None
    """How fp8 operands are made, where that differs from `kernels` (Transformer Engine: fused)."""
    grad_bytes: float = 4.0
    """Bytes per parameter in the gradient reduction."""
    param_bytes: float = 2.0
    """Bytes per parameter of the weights that the forward pass uses, and gathers again after a
    sharded optimizer step."""
    state_bytes: float = 12.0
    """Bytes per parameter of AdamW's state: 12 with fp32 weights beside bf16 ones, 8 where the fp32
    weights are the only ones, 4 all in bf16."""
    half_grad_bytes: float = 0.0
    """Bytes per parameter of bf16 gradients beside the fp32 buffer that accumulates them."""
    splits_gradients: bool = False
    """With zero1, fp32 gradients are split like the state, and bf16 ones stay whole."""
    bucket_bytes: float = 25e6
    """Size of one gradient reduction; 25 MB is DistributedDataParallel's default."""
    keeps_gradients: bool = True
    """Gradient buffers stay from step to step, rather than being freed after the update."""
    usual_recompute: Recompute = "none"
    """Recomputation that its users take by default."""
    selective: str = "elementwise"
    """Work that `selective` recomputes: "attention", "elementwise", or "half" of the matmuls."""
    saves: Literal["megatron", "megatron-2021", "nanotron", "torch", "torchtitan", "graph"] = (
        "megatron"
    )
    """The list of tensors kept for the backward pass (`activations.LISTS`)."""
    balances_head: bool = False
    """Pipeline stages are cut by cost with the head counted, rather than by layers. Memory follows
    that; predicted step times did not get better by it."""
    compiled_loss: bool = False
    """Where kernels are compiled, the loss is too (torchtitan since e10cb9494, October 2024), and from
    2025 on that holds no fp32 logits: in December 2024 compiling saved torchtitan 5 of 82 GiB, where
    it would have saved 16 (its table 1); with torch 2.11 our H200 measured 4 bytes a logit."""

    @property
    def master_bytes(self) -> float:
        """fp32 weights in the state, per parameter, beside the ones that are trained with."""
        return max(self.state_bytes - 8.0, 0.0)

    @property
    def moment_bytes(self) -> float:
        """AdamW's two moments in the state, per parameter."""
        return self.state_bytes - self.master_bytes


GRAPHS = ("none", "blocks", "step")
ATTENTIONS = ("unfused", "flash1", "flash2", "latest")
KERNELS = ("eager", "fused", "compiled", "graph")
SAVES = (
    "megatron",
    "megatron-2021",
    "nanotron",
    "torch",
    "torch-compiled",
    "torch-compiled-fp8",
    "torchtitan",
    "graph",
)
"""Names of the lists in `activations`."""
STACKS = {
    stack.name: stack
    for stack in (
        Stack(
            name="megatron",
            year=2026,
            grad_bytes=2.0,
            bucket_bytes=160e6,
            dispatcher="deduplicating",
        ),
        Stack(name="nemo", year=2025, grad_bytes=2.0, bucket_bytes=160e6),
        Stack(
            name="megatron-2021",
            year=2021,
            attention="unfused",
            sequence_parallel=False,
            tp_overlap=False,
            dp_overlap=False,
            selective="attention",
            bucket_bytes=1e9,
            saves="megatron-2021",
        ),
        Stack(
            name="megatron-deepspeed",
            year=2022,
            attention="unfused",
            sequence_parallel=False,
            tp_overlap=False,
            dp_overlap=False,
            selective="attention",
            bucket_bytes=500e6,
            saves="megatron-2021",
            half_grad_bytes=2.0,
            splits_gradients=True,
        ),
        Stack(
            name="composer",
            year=2023,
            attention="flash1",
            sequence_parallel=False,
            tp_overlap=False,
            grad_bytes=2.0,
            kernels="eager",
            casts="fused",
            saves="torch",
        ),
        Stack(
            name="torchtitan",
            year=2025,
            attention="flash2",
            kernels="compiled",
            tp_overlap=False,
            selective="half",
            keeps_gradients=False,
            saves="torchtitan",
            compiled_loss=True,
        ),
        Stack(
            name="nanotron",
            year=2025,
            attention="flash2",
            sequence_parallel=False,
            tp_overlap=False,
            kernels="eager",
            saves="nanotron",
            half_grad_bytes=2.0,
            balances_head=True,
        ),
        Stack(
            name="jax",
            year=2025,
            kernels="graph",
            usual_recompute="selective",
            selective="half",
            bucket_bytes=1e9,
            saves="graph",
        ),
        Stack(name="neuron", year=2024, kernels="graph", bucket_bytes=500e6, saves="graph"),
        Stack(
            name="lab",
            year=2026,
            sequence_parallel=False,
            tp_overlap=False,
            kernels="eager",
            grad_bytes=2.0,
            state_bytes=4.0,
            keeps_gradients=False,
            saves="torch",
        ),
    )
}
"""Capabilities as the projects document them; see docs/predict.md."""
DEFAULT = "megatron"
_BY_VENDOR = {"Google": "jax", "AWS": "neuron"}
"""Usual stack of vendors on whose devices Megatron does not run."""


def find_stack(name: str) -> Stack:
    if name not in STACKS:
        raise UnknownNameError("stack", name, STACKS)
    return STACKS[name]


def usual_stack(vendor: str) -> Stack:
    """The stack that a job on this vendor's devices is assumed to use, where none is given."""
    return STACKS[_BY_VENDOR.get(vendor, DEFAULT)]
