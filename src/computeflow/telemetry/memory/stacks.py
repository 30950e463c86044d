"""Meaning of an allocation's stack: `stack_kind`, `site_of`.

The names of files and functions are those of torch 2.0 to 2.13, Megatron-LM core and Transformer
Engine; only unmistakable ones are used.
"""

from __future__ import annotations

import re
from enum import IntEnum

from computeflow.telemetry.memory.snapshot import Frame, Stack


class StackKind(IntEnum):
    """The part of the program that allocated memory, by its stack."""

    SILENT = 0
    """No stack: an autograd thread where only Python is recorded, or nothing is."""
    OTHER = 1
    OPTIMIZER = 2
    WEIGHTS = 3
    COMMUNICATION = 4
    WORKSPACE = 5
    FORWARD = 6
    BACKWARD = 7


_MODULES = (
    r"(^|/)(torch/nn/modules/|megatron/core/tensor_parallel/layers|"
    r"transformer_engine/.{0,80}/module/)"
)
_RULES: tuple[tuple[StackKind, re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (kind, re.compile(file), re.compile(name))
    for kind, file, name in (
        (
            StackKind.WORKSPACE,
            r"",
            r"getCUDABlasLt|CUDABlasHandle|(?i:cublas\w{0,80}|cudnn.{0,80})[Ww]orkspace",
        ),
        (StackKind.COMMUNICATION, r"", r"c10d::|ncclComm|symm_mem"),
        (
            StackKind.OPTIMIZER,
            r"(^|/)(torch/optim|apex/optimizers|megatron/core/optimizer|"
            r"bitsandbytes/optim|deepspeed/ops/(adam|lamb|lion)|transformer_engine/.{0,80}/optimizers)/",
            r"",
        ),
        (
            StackKind.WEIGHTS,
            r"(^|/)torch/distributed/.{0,40}fsdp/.{0,40}_fsdp_param\.py$",
            r"^_init_sharded_param$",
        ),
        (
            StackKind.COMMUNICATION,
            r"(^|/)torch/distributed/.{0,40}fsdp/.{0,40}_fsdp_(collectives|param)\.py$",
            r"",
        ),
        (
            StackKind.COMMUNICATION,
            r"(^|/)torch/distributed/fsdp/_flat_param\.py$",
            r"_alloc_padded",
        ),
        (
            StackKind.COMMUNICATION,
            r"(^|/)torch/distributed/(distributed_c10d|_functional_collectives)\.py$|"
            r"(^|/)megatron/core/pipeline_parallel/p2p_communication\.py$|(^|/)deep_ep/",
            r"",
        ),
        (
            StackKind.WEIGHTS,
            _MODULES,
            r"^(__init__|reset_parameters|_apply|convert|to|cuda|to_empty)$",
        ),
        (StackKind.WEIGHTS, r"", r"^(from_pretrained|load_state_dict|_load_from_state_dict)$"),
        (StackKind.FORWARD, r"(^|/)torch/nn/modules/module\.py$", r"^_(wrapped_)?call_impl$"),
        (StackKind.FORWARD, r"(^|/)torch/utils/checkpoint\.py$|torchinductor_", r""),
        (StackKind.BACKWARD, r"", r"autograd::Engine::(evaluate|thread)|PythonEngine::thread"),
        (StackKind.BACKWARD, r"", r"AccumulateGrad"),
        (StackKind.BACKWARD, r"(^|/)torch/autograd/function\.py$", r"^apply$"),
    )
)


def stack_kind(stack: Stack) -> StackKind:
    """The kind of a stack, by the innermost frame that matches a rule."""
    for frame in stack:
        for kind, file, name in _RULES:
            if file.search(frame.file) and name.search(frame.name):
                return kind
    return StackKind.OTHER if stack else StackKind.SILENT


def site_of(stack: Stack) -> str:
    """The innermost frame of the user's own Python; else of any Python; else of anything."""
    python = [frame for frame in stack if frame.file.endswith(".py")]
    own = [frame for frame in python if not _is_library(frame)]
    chosen = own or python or [frame for frame in stack if not _RECORDING.search(frame.name)]
    return chosen[0].label if chosen else ""


_RECORDING = re.compile(r"unwind|CapturedTraceback|gather_with_cpp|CachingAllocator|c10::|^\?*$")
"""Frames that every allocation has."""
_LIBRARY = re.compile(r"(^|/)(torch|torchvision|triton|site-packages|dist-packages|lib/python\d)/")


def _is_library(frame: Frame) -> bool:
    return bool(_LIBRARY.search(frame.file))
