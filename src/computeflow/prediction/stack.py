"""The software a step runs on, as the capabilities that its time depends on; dated presets.

An unknown stack is today's practice with the widest range, and the prediction says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from computeflow.errors import UnknownNameError
from computeflow.workload.layout import Recompute, Sharding

Family = Literal[
    "megatron", "torch", "huggingface", "deepspeed", "xla", "neuron", "gaudi", "lab", "native"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    name: str
    year: float
    """Year of the release; kernels get better, and new hardware is slower at first."""
    family: Family = "megatron"
    """Stacks that share kernels and habits: what is known of one says something of the others."""
    attention: Literal["unfused", "flash1", "flash2", "latest", "sdpa"] = "latest"
    """unfused: scores through memory; flash1, flash2: FlashAttention (and Triton's) of 2022 and of
    2023; latest: kernels made for the generation (FlashAttention-3, cuDNN); sdpa: PyTorch's own, which
    is FlashAttention-2 up to Hopper and cuDNN's on Blackwell (NVIDIA/cudnn-frontend, pull request
    596)."""
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
    host_factor: float = 1.0
    """Host time of a layer over that of our own eager trainer, as `host_forward` counts it."""
    host_step: float = 0.0
    """Host seconds of a step beside its layers: the trainer's callbacks, clipping, the optimizer."""
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
    usual_sharding: Sharding = "ddp"
    """Sharding that its users take by default."""
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
ATTENTIONS = ("unfused", "flash1", "flash2", "latest", "sdpa")
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
HUGGINGFACE_HOST, HUGGINGFACE_STEP = 1.3, 0.040
"""Host time of Hugging Face's model code over our eager trainer's, layer by layer, and seconds of its
Trainer beside that in every step. On an H200 a Llama of 1B at 1 x 128 tokens takes 0.091 s a step
where ours takes 0.042. With 8 to 16 micro-batches in a step, 1 x 256 to 512 tokens on an A100 take
0.10 to 0.13 s each for 24 layers with recomputation, 1.1 to 1.4 times ours (Qwen's fine-tuning profile,
2023; ms-swift's benchmark, 2024): most of the difference is the step's."""
_PLAIN = Stack(
    name="torch",
    year=2025,
    family="torch",
    attention="sdpa",
    sequence_parallel=False,
    tp_overlap=False,
    kernels="eager",
    grad_bytes=2.0,
    selective="half",
    keeps_gradients=False,
    saves="torch",
)
"""PyTorch as it comes: eager, its own attention, fp32 state beside bf16 weights."""
_HUGGINGFACE = replace(
    _PLAIN,
    name="huggingface",
    year=2026,
    family="huggingface",
    attention="latest",
    state_bytes=4.0,
    host_factor=HUGGINGFACE_HOST,
    host_step=HUGGINGFACE_STEP,
)
_NEMO_2023 = Stack(
    name="nemo-2023",
    year=2023,
    attention="unfused",
    sequence_parallel=False,
    tp_overlap=False,
    selective="attention",
    grad_bytes=2.0,
    bucket_bytes=160e6,
    saves="megatron-2021",
    usual_sharding="zero1",
)
"""Megatron's fused kernels, without flash attention and Transformer Engine: defaults of the GPT
recipes of the NeMo Framework Launcher 23.08 (masked_softmax_fusion, transformer_engine: False)."""
STACKS = {
    stack.name: stack
    for stack in (
        Stack(
            name="megatron",
            year=2026,
            grad_bytes=2.0,
            bucket_bytes=160e6,
            dispatcher="deduplicating",
            usual_sharding="zero1",
        ),
        Stack(name="nemo", year=2025, grad_bytes=2.0, bucket_bytes=160e6, usual_sharding="zero1"),
        _NEMO_2023,
        Stack(  # Megatron-LM on ROCm: no overlap of tensor parallelism, fp32 reductions
            name="primus",
            year=2025,
            tp_overlap=False,
            bucket_bytes=160e6,
            usual_sharding="zero1",
        ),
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
        Stack(  # doc/en/install.md: FlashAttention 1.0.5 with its rotary, norm and loss kernels, Apex
            name="internevo",
            year=2023,
            family="torch",
            attention="flash1",
            sequence_parallel=False,
            tp_overlap=False,
            grad_bytes=2.0,
            bucket_bytes=500e6,
            saves="nanotron",
            usual_sharding="zero1",
        ),
        Stack(
            name="composer",
            year=2023,
            family="torch",
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
            family="torch",
            attention="sdpa",
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
            family="torch",
            attention="flash2",
            sequence_parallel=False,
            tp_overlap=False,
            kernels="eager",
            saves="nanotron",
            half_grad_bytes=2.0,
            balances_head=True,
        ),
        _PLAIN,
        replace(_PLAIN, name="lightning"),
        replace(_PLAIN, name="litgpt", year=2024),
        replace(_PLAIN, name="torchtune", state_bytes=4.0),  # recipes train in bf16 throughout
        _HUGGINGFACE,
        replace(_HUGGINGFACE, name="accelerate"),
        replace(  # ZeRO around Hugging Face's models: fp32 state, bf16 gradients in large buckets
            _PLAIN,
            name="deepspeed",
            family="deepspeed",
            bucket_bytes=500e6,
            keeps_gradients=True,
            host_factor=HUGGINGFACE_HOST,
            host_step=HUGGINGFACE_STEP,
        ),
        Stack(  # one program in C: fused kernels, cuDNN's attention, no Python between them
            name="llm.c",
            year=2024,
            family="native",
            sequence_parallel=False,
            tp_overlap=False,
            grad_bytes=2.0,
            host_factor=0.1,
            saves="megatron",
        ),
        Stack(
            name="jax",
            year=2025,
            family="xla",
            kernels="graph",
            usual_recompute="selective",
            selective="half",
            bucket_bytes=1e9,
            saves="graph",
        ),
        Stack(
            name="neuron",
            year=2024,
            family="neuron",
            kernels="graph",
            bucket_bytes=500e6,
            saves="graph",
        ),
        Stack(  # Megatron-DeepSpeed for Gaudi: SynapseAI compiles graphs, FusedSDPA attends
            name="gaudi",
            year=2024,
            family="gaudi",
            tp_overlap=False,
            kernels="graph",
            grad_bytes=2.0,
            bucket_bytes=500e6,
            saves="graph",
            usual_sharding="zero1",
        ),
        Stack(
            name="lab",
            year=2026,
            family="lab",
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
GENERIC = "torch"
"""Stack of software that is not known: plain PyTorch."""
_BY_VENDOR = {"Google": "jax", "AWS": "neuron", "Intel": "gaudi"}
"""Usual stack of vendors on whose devices Megatron does not run."""


def find_stack(name: str) -> Stack:
    if name not in STACKS:
        raise UnknownNameError("stack", name, STACKS)
    return STACKS[name]


def usual_stack(vendor: str) -> Stack:
    """The stack that a job on this vendor's devices is assumed to use, where none is given."""
    return STACKS[_BY_VENDOR.get(vendor, DEFAULT)]
