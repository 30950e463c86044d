"""What a stack says of who asked for memory: `kind_of`, `site_of`.

The names of files and functions are those of torch 2.0 to 2.13, Megatron-LM core and Transformer
Engine; only what is unmistakable is named.
"""

from __future__ import annotations

import re
from enum import IntEnum

from computeflow.telemetry.memory.snapshot import Frame, Stack


class Kind(IntEnum):
    """What a stack says of who asked."""

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
_RULES: tuple[tuple[Kind, re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (kind, re.compile(file), re.compile(name))
    for kind, file, name in (
        (
            Kind.WORKSPACE,
            r"",
            r"getCUDABlasLt|CUDABlasHandle|(?i:cublas\w{0,80}|cudnn.{0,80})[Ww]orkspace",
        ),
        (Kind.COMMUNICATION, r"", r"c10d::|ncclComm|symm_mem"),
        (
            Kind.OPTIMIZER,
            r"(^|/)(torch/optim|apex/optimizers|megatron/core/optimizer|"
            r"bitsandbytes/optim|deepspeed/ops/(adam|lamb|lion)|transformer_engine/.{0,80}/optimizers)/",
            r"",
        ),
        (
            Kind.WEIGHTS,
            r"(^|/)torch/distributed/.{0,40}fsdp/.{0,40}_fsdp_param\.py$",
            r"^_init_sharded_param$",
        ),
        (
            Kind.COMMUNICATION,
            r"(^|/)torch/distributed/.{0,40}fsdp/.{0,40}_fsdp_(collectives|param)\.py$",
            r"",
        ),
        (Kind.COMMUNICATION, r"(^|/)torch/distributed/fsdp/_flat_param\.py$", r"_alloc_padded"),
        (
            Kind.COMMUNICATION,
            r"(^|/)torch/distributed/(distributed_c10d|_functional_collectives)\.py$|"
            r"(^|/)megatron/core/pipeline_parallel/p2p_communication\.py$|(^|/)deep_ep/",
            r"",
        ),
        (Kind.WEIGHTS, _MODULES, r"^(__init__|reset_parameters|_apply|convert|to|cuda|to_empty)$"),
        (Kind.WEIGHTS, r"", r"^(from_pretrained|load_state_dict|_load_from_state_dict)$"),
        (Kind.FORWARD, r"(^|/)torch/nn/modules/module\.py$", r"^_(wrapped_)?call_impl$"),
        (Kind.FORWARD, r"(^|/)torch/utils/checkpoint\.py$|torchinductor_", r""),
        (Kind.BACKWARD, r"", r"autograd::Engine::(evaluate|thread)|PythonEngine::thread"),
        (Kind.BACKWARD, r"", r"AccumulateGrad"),
        (Kind.BACKWARD, r"(^|/)torch/autograd/function\.py$", r"^apply$"),
    )
)


def kind_of(stack: Stack) -> Kind:
    """By the innermost frame that tells."""
    for frame in stack:
        for kind, file, name in _RULES:
            if file.search(frame.file) and name.search(frame.name):
                return kind
    return Kind.OTHER if stack else Kind.SILENT


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
