"""What must be equal on all ranks of an operation: `signature`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from computeflow.telemetry.flight_recorder.operations import Op

_UNIFORM = ("all_reduce", "allreduce", "all_gather", "reduce_scatter", "broadcast", "allgather")
_ROOTED = {"gather": 0, "reduce": 0, "scatter": 1}
"""Collectives with a root, and the side that is equal on all ranks: 0 for inputs, 1 for outputs."""
_RAGGED = ("_v", "coalesced", "all_to_all", "alltoall")


def signature(op: Op) -> tuple[object, ...]:
    """Properties that must be equal on all ranks; for a message, its size and type."""
    if op.is_message:
        side = 0 if op.name == "send" else 1
        return (elements(op.sizes[side]), op.dtypes[side])
    if op.name in _ROOTED:
        side = _ROOTED[op.name]
        return (op.name, elements(op.sizes[side]), op.dtypes[side][:1])
    uniform = any(word in op.name for word in _UNIFORM)
    if not uniform or is_ragged(op):
        return (op.name,)
    return (op.name, *map(elements, op.sizes), *op.dtypes)


def is_ragged(op: Op) -> bool:
    """Whether ranks may bring different sizes, so that a wrong one cannot be told from a right one."""
    return any(word in op.name for word in _RAGGED)


def elements(shapes: Sequence[Sequence[int]]) -> int:
    return sum(math.prod(shape) for shape in shapes)
