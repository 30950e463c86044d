"""Names of planes, lines and events in a profile, and their meanings.

Names of planes and lines: openxla/xla, `xla/tsl/profiler/utils/xplane_schema.cc`; of operations:
XLA's own opcodes (openxla.org/xla/operation_semantics, openxla.org/xla/async_ops).
"""

from __future__ import annotations

import re

from computeflow.telemetry.traces.event_names import (
    MAX_READ,
    EventTable,
    Mark,
    WorkKind,
    mark_of,
    work_of,
)

DEVICE = re.compile(r"^/device:(\w+):(\d+)$")
HOSTS = ("/host:CPU", "/host:CUPTI", "/host:ROCTRACER", "/host:python-tracer")
TASK = "Task Environment"
METADATA = "/host:metadata"
STREAM = "Stream #"
OPS, ASYNC, STEPS, MODULES = "XLA Ops", "Async XLA Ops", "Steps", "XLA Modules"
DERIVED = frozenset({
    "XLA TraceMe", "Framework Name Scope", "Framework Ops", "TensorFlow Name Scope",
    "TensorFlow Ops", "Launch Stats", "Source code", STEPS, MODULES, OPS, ASYNC,
})  # fmt: skip
"""Lines that repeat the time of the streams in another form."""
_COLLECTIVE = re.compile(
    r"^(all-reduce|all-gather|reduce-scatter|(ragged-)?all-to-all|collective-permute|"
    r"collective-broadcast|async-collective|send|recv)(-start|-done)?(\.[\w.]+)?$"
)
_FEED = re.compile(r"^(infeed|outfeed)(-start|-done)?(\.[\w.]+)?$")
_MOVED = re.compile(
    r"^(copy|slice|dynamic-update-slice|dynamic-slice|memset)(-start|-done)?(\.[\w.]+)?$"
)
_PEER = re.compile(r"^memcpyp2p", re.IGNORECASE)
_AGAIN = re.compile(r"rematted_computation|\.remat\d*(\.|$)")
_SIZE = re.compile(r"\bsize:(\d{1,18})\b|\bnum_bytes:(\d{1,18})\b")


_ODD = re.compile(r"\W")
_RUN = re.compile(r"^PjitFunction\((.{1,200})\)$")


def known_plane(name: str) -> bool:
    return name in (*HOSTS, TASK, METADATA) or name.startswith("/device:")


def module_of(name: str) -> str:
    """The module that a call of a compiled function runs, as XLA names it; "" for other names."""
    match = _RUN.match(name)
    return "jit_" + _ODD.sub("_", match[1]) if match else ""


def operation(name: str) -> str:
    """The operation's own name, where the text may be its whole definition: "%fusion.1 = bf16[8]
    fusion(...)".
    """
    name = name[:MAX_READ]
    if name.startswith("%"):
        name = name[1:].split(" ", 1)[0]
    return name


def work_of_operation(name: str, category: str) -> WorkKind:
    """The kind of work of an XLA operation; the compiler's category comes first."""
    for text in (category, name):
        if _COLLECTIVE.match(text):
            return WorkKind.COMM
        if _FEED.match(text):
            return WorkKind.COPY
    return WorkKind.MEMORY if _MOVED.match(name) else WorkKind.COMPUTE


def work_of_kernel(name: str, operation_name: str) -> WorkKind:
    """The kind of work on a GPU's stream: a copy inside of a collective is communication, too."""
    if _COLLECTIVE.match(operation_name) or _PEER.match(name):
        return WorkKind.COMM
    return work_of(name, EventTable.GPU, "")


def is_again(name: str, scope: str) -> bool:
    """Whether an operation computes again, by jax.checkpoint or by XLA to save memory."""
    return bool(_AGAIN.search(operation(name)) or _AGAIN.search(scope[:MAX_READ]))


def mark_of_annotation(name: str) -> Mark:
    """The meaning of an annotation; names of Python functions begin with "$"."""
    return mark_of(
        name.lstrip("$"), EventTable.PYTHON if name.startswith("$") else EventTable.ANNOTATION
    )


def copied_bytes(details: str) -> int:
    match = _SIZE.search(details[:MAX_READ])
    return int(match[1] or match[2]) if match else -1
