"""Megatron-LM's own arguments: parsed, validated at the plan's number of GPUs, and made into configs.

What asks the machine for a GPU is told of an H100 or B200, and what asks for Transformer Engine of
2.13; data and learning rate are the user's to give. Megatron's releases want Python 3.12 for one name
of `typing`, lent here to 3.11.
"""

from __future__ import annotations

import os
import shlex
import sys
import typing
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

from benchmarks.parsers.answers import Asked, answer, expect, same

USERS = ["--lr", "1e-4", "--mock-data", "--tokenizer-type", "NullTokenizer", "--no-rope-fusion"]
"""Arguments that users add; the last because Transformer Engine's kernels are missing."""
SHARDED = ("zero2", "zero3", "fsdp", "hsdp")
FIELDS = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "micro_batch": "micro_batch_size",
}


def take(request: Asked) -> None:
    lines = request.text("megatron.args").splitlines()
    words = [word for line in lines if not line.startswith("#") for word in shlex.split(line)]
    ends = {"--train-iters", "--train-samples"} & set(words)
    users = USERS if ends else [*USERS, "--train-iters", "10"]
    rank = {"RANK": "0", "WORLD_SIZE": str(request.gpus), "LOCAL_RANK": "0"}
    if request.layout["sharding"] not in SHARDED:
        rank["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # as the launch files of such a plan have it
    line = mock.patch.object(sys, "argv", ["x", *words, *users])
    with mock.patch.dict(os.environ, rank), line, a_gpu(request.job["precision"]):
        args = parsed()
    compare(args, request)


def parsed() -> Any:
    arguments = import_module("megatron.training.arguments")
    args = arguments.parse_args()
    arguments.validate_args(args)
    arguments.core_transformer_config_from_args(args)
    training = import_module("megatron.training.training")
    training.get_megatron_optimizer_config(args)
    training.get_megatron_ddp_config(args)
    return args


def compare(args: Any, request: Asked) -> None:
    for ours, theirs in FIELDS.items():
        same(getattr(args, theirs), request.layout[ours], request, ours)
    chunks = args.virtual_pipeline_model_parallel_size or 1
    same(chunks, request.layout["vp"], request, "vp")
    same(args.data_parallel_size, request.dp, request, "dp")
    same(args.global_batch_size, request.job["global_batch"], request, "global_batch")
    same(args.recompute_granularity or "none", request.layout["recompute"], request, "recompute")
    expect(args.seq_length == request.job["seq_len"], f"sequences of {args.seq_length}")


def a_gpu(precision: str) -> Any:
    """A GPU that has the precision."""
    new = precision in ("mxfp8", "nvfp4")
    version, name = ((10, 0), "NVIDIA B200") if new else ((9, 0), "NVIDIA H100")
    device = SimpleNamespace(major=version[0], minor=version[1], name=name, total_memory=80 << 30)
    return mock.patch.multiple(
        "torch.cuda",
        get_device_properties=lambda *_: device,
        current_device=lambda: 0,
        get_device_capability=lambda *_: version,
        is_available=lambda: True,
        get_device_name=lambda *_: name,
    )


def lend(engine: str = "2.13.0") -> None:
    """Provide the one name of Python 3.12 that is needed, and a release of Transformer Engine."""
    if not hasattr(typing, "override"):
        typing.override = import_module("typing_extensions").override  # type: ignore[attr-defined]
    version = import_module("packaging.version").Version(engine)
    vars(import_module("megatron.core.utils"))["_te_version"] = version


if __name__ == "__main__":
    lend()
    answer(take)
