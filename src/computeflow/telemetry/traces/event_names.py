"""Meanings of the names in a trace. A name is matched once, however many events carry it.

Names are the last resort: categories and arguments of an event come first, because libraries rename
their kernels (NCCL did) and new ones appear.
"""

from __future__ import annotations

import re
from enum import IntEnum


class EventTable(IntEnum):
    """The table that an event's category belongs to."""

    NONE = 0
    GPU = 1
    COPY = 2
    MEMSET = 3
    RUNTIME = 4
    OP = 5
    ANNOTATION = 6
    PYTHON = 7


CATEGORIES = {
    "kernel": EventTable.GPU,
    "gpu_op": EventTable.GPU,
    "mtia_ccp_events": EventTable.GPU,
    "gpu_memcpy": EventTable.COPY,
    "memcpy": EventTable.COPY,
    "gpu_memset": EventTable.MEMSET,
    "memset": EventTable.MEMSET,
    "cuda_runtime": EventTable.RUNTIME,
    "cuda_driver": EventTable.RUNTIME,
    "hip_runtime": EventTable.RUNTIME,
    "runtime": EventTable.RUNTIME,
    "mtia_runtime": EventTable.RUNTIME,
    "xpu_runtime": EventTable.RUNTIME,
    "privateuse1_runtime": EventTable.RUNTIME,
    "privateuse1_driver": EventTable.RUNTIME,
    "cpu_op": EventTable.OP,
    "operator": EventTable.OP,
    "user_annotation": EventTable.ANNOTATION,
    "python_function": EventTable.PYTHON,
    "overhead": EventTable.ANNOTATION,
}
"""Kineto's names of activities, including those of 2021, in lower case."""


class WorkKind(IntEnum):
    """A kind of work on the device."""

    COMPUTE = 0
    MEMORY = 1
    """Memory set or copied inside the device: a kernel by another name."""
    COPY = 2
    """A copy between host and device."""
    COMM = 3


class Call(IntEnum):
    """The effect of a runtime call on the host."""

    OTHER = 0
    LAUNCH = 1
    SYNC = 2
    ALLOCATE = 3
    COPY = 4
    FREE = 5
    """Memory is given back to the driver."""


ALLOCATOR = (Call.ALLOCATE, Call.FREE)


class Mark(IntEnum):
    """The meaning of an interval of host time."""

    NONE = 0
    STEP = 1
    BACKWARD = 2
    OPTIMIZER = 3
    FORWARD_OP = 4
    """An operator that autograd recorded; on a backward thread, a recomputed one."""
    INPUT = 5
    CHECKPOINT = 6
    EVALUATION = 7
    COLLECT = 8
    """Garbage collection."""
    COLLECTIVE = 9
    """The host submits a collective, which need not run yet."""
    TRANSFER = 10
    """A collective that the host itself carries out."""
    COLLATE = 11
    """Samples are joined into a batch; counts for the data loader where it runs inside of one."""
    PIN = 12
    """A batch is copied into pinned memory, which the device can read directly."""
    READ = 13
    """The host reads a value from the device, and so waits for it."""


_COMM = re.compile(
    r"nccl|rccl|hccl|oneccl|mscclpp?|nvshmem|rocshmem|deep_?ep|symm_mem|userbuffers|"
    r"cross_device_reduce|(one|two)_shot_all_reduce|multimem_all|gloo:|"
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv",
    re.IGNORECASE,
)
_INSIDE = re.compile(r"dtod|device *-> *device|d2d|DeviceToDevice", re.IGNORECASE)
_PEER = re.compile(r"ptop|peer", re.IGNORECASE)
_COPY = re.compile(r"^memcpy|^copy(host|device|buffer)|__amd_rocclr_copy", re.IGNORECASE)
_FILL = re.compile(r"^memset|__amd_rocclr_fill", re.IGNORECASE)
_LAUNCH = re.compile(r"launch|memset|graph", re.IGNORECASE)
_COPYING = re.compile(r"memcpy", re.IGNORECASE)
_SYNC = re.compile(r"synchronize|eventquery.{0,100}wait|devicesync|streamsync", re.IGNORECASE)
_ALLOCATE = re.compile(r"malloc|hostalloc|memcreate|memmap|memaddress", re.IGNORECASE)
_FREE = re.compile(r"cudafree|hipfree|memunmap|memrelease|memaddressfree", re.IGNORECASE)
_STEP = re.compile(r"^ProfilerStep#?\s*(\d+)")
_INPUT = re.compile(
    r"^enumerate\(DataLoader\)#|dataloader.{0,100}(__next__|_next$)|"
    r"^(data|input)[ _-]?(load|wait|fetch)|^(load|get|fetch|next)[ _-]?(data|batch|inputs?)\b|"
    r"^## ?data ?##$|^batch-generator$",
    re.IGNORECASE,
)
_CHECKPOINT = re.compile(
    r"^checkpoint([ _](save|saving|stall|write))?$|^(async[ _])?save[ _-]?(checkpoint|ckpt)|"
    r"[ _.](async_)?save_?(checkpoint|ckpt)$|"
    r"\bModelCheckpoint\b.{0,300}\.on_(train_batch|train_epoch|validation)_end$",
    re.IGNORECASE,
)
_SAVING_CALL = re.compile(
    r"torch/serialization\.py\(\d{1,9}\): save$|torch/distributed/checkpoint/.{0,100}: (async_)?save$"
)
"""Functions of torch that write a checkpoint, by their file; others are known by their own name."""
_IN_FILE = re.compile(r"^.*\(\d+\): ")
"""The file and line before a Python function's name."""
_EVALUATION = re.compile(
    r"^(eval(uate|uation)?|validat(e|ion))([ _-]|$)|\.(validation|test)_step$|_EvaluationLoop\b",
    re.IGNORECASE,
)
_COLLECT = re.compile(
    r"^python gc|^gc(\.collect)?$|<built-in function collect>|^gc:", re.IGNORECASE
)
_OPTIMIZER = re.compile(
    r"^optimizer\.(step|zero_grad)#|^clip_grad|^optimizer([ _]step)?$|^zero_grad$", re.IGNORECASE
)
_CLIP = frozenset(
    {
        "aten::_foreach_norm",
        "aten::_foreach_mul_",
        "aten::_fused_adamw_",
        "aten::_fused_adam_",
        "aten::_fused_sgd_",
    }
)


QUIET = {
    "aten::stack": Mark.COLLATE, "aten::pin_memory": Mark.PIN, "aten::_pin_memory": Mark.PIN,
    "aten::item": Mark.READ, "aten::nonzero": Mark.READ, "aten::masked_select": Mark.READ,
    "aten::_unique2": Mark.READ, "aten::equal": Mark.READ, "aten::is_nonzero": Mark.READ,
}  # fmt: skip
"""Operators with a meaning of their own; where autograd records them, only those that read a value."""
PIPELINE_STEP = "PP:"
"""Begin of torch.distributed.pipelining's annotations: PP:1SEND_B0 is stage 1's first backward send."""
MAX_READ = 4096
"""Characters of a name that are matched: patterns on megabytes of text take hours."""


def work_of(name: str, table: EventTable, collective: str) -> WorkKind:
    if collective:
        return WorkKind.COMM
    name = name[:MAX_READ]
    if table is EventTable.MEMSET or (table is EventTable.GPU and _FILL.search(name)):
        return WorkKind.MEMORY
    if table is EventTable.COPY or _COPY.search(name):
        if _PEER.search(name):
            return WorkKind.COMM
        return WorkKind.MEMORY if _INSIDE.search(name) else WorkKind.COPY
    return WorkKind.COMM if _COMM.search(name) else WorkKind.COMPUTE


def call_of(name: str) -> Call:
    name = name[:MAX_READ]
    if _SYNC.search(name):
        return Call.SYNC
    if _FREE.search(name):
        return Call.FREE
    if _ALLOCATE.search(name):
        return Call.ALLOCATE
    if _COPYING.search(name):
        return Call.COPY
    return Call.LAUNCH if _LAUNCH.search(name) else Call.OTHER


def mark_of(name: str, table: EventTable) -> Mark:
    """The meaning of an operator, annotation or Python function, by its name."""
    name = name[:MAX_READ]
    if table is EventTable.OP:
        if name.startswith("autograd::engine::evaluate_function"):
            return Mark.BACKWARD
        if name in _CLIP:
            return Mark.OPTIMIZER
        if name == "record_param_comms" or name.startswith(("c10d::", "_c10d_functional::")):
            return Mark.COLLECTIVE
    if _STEP.match(name) and table is not EventTable.PYTHON:
        return Mark.STEP
    if table is EventTable.ANNOTATION and name.startswith(("gloo:", "mpi:", "ucc:")):
        return Mark.TRANSFER
    if table is EventTable.PYTHON:
        return _function_mark(name)
    return _named_mark(name)


def _function_mark(name: str) -> Mark:
    """The meaning of a Python function: torch's own by their file, others by their name alone."""
    if _SAVING_CALL.search(name):
        return Mark.CHECKPOINT
    if "dataloader.py(" not in name:
        name = _IN_FILE.sub("", name)
    if name == "checkpoint":  # torch.utils.checkpoint: activations, which are not saved
        return Mark.NONE
    return _named_mark(name)


def _named_mark(name: str) -> Mark:
    for pattern, mark in _MARKS:
        if pattern.search(name):
            return mark
    return Mark.NONE


_MARKS = (
    (_INPUT, Mark.INPUT), (_CHECKPOINT, Mark.CHECKPOINT), (_EVALUATION, Mark.EVALUATION),
    (_COLLECT, Mark.COLLECT), (_OPTIMIZER, Mark.OPTIMIZER),
)  # fmt: skip


def step_number(name: str) -> int | None:
    match = _STEP.match(name)
    return int(match[1]) if match and len(match[1]) < 10 else None
