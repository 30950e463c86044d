"""How a published run spreads weights, gradients and optimizer state, from its words."""

from __future__ import annotations

import re

from computeflow.prediction.stack import Stack
from computeflow.prediction.table_cells import Row, words
from computeflow.workload.layout import Sharding

_HYBRID = re.compile(r"hsdp|hybrid[-_ ]?(?:full[-_ ]?)?shard|across (?:nodes|slices)")
_FULL = re.compile(
    r"fsdp|zero-?3|zero[- _]stage[- _=]?3|stage[-_ =]?3|full[-_ ]?shard|zero\+\+|hpz"
)
_SECOND = re.compile(r"zero-?2|stage[-_ =]?2|shard[-_ ]?grad[-_ ]?op")
_FIRST = re.compile(
    r"zero-?1|stage[-_ =]?1|zero-?redundancy|distributed (?:optim|fused|muon|adam)|distmuon"
)
_COPIES = re.compile(r"(?:replicas?|dp_replicate|replicate|ddp|\bdp)\s*=\s*(\d+)")
_GROUP = re.compile(
    r"(?:zero-?[123]|fsdp2?|hsdp|shards?|dp_shard|shard[-_ ](?:size|group))\s*(?:=|of)\s*(-?\d+)"
)


def run_sharding(row: Row, stack: Stack, ranks: int, node: int) -> tuple[Sharding, int]:
    """The sharding, and the groups of ranks that each hold once what is sharded.

    `ranks` are the data-parallel ones, `node` those of them in one node: a hybrid that says no size
    shards inside a node, as PyTorch's does by default. "ddp" is what the stack calls so: Megatron's
    has a distributed optimizer.
    """
    text = words(row, "zero_fsdp")
    if re.match(r"^(?:none|no|zero-?0)\b", text) and not _FIRST.search(words(row, "flags")):
        return "ddp", 1
    if "fsdp=y" in words(row, "flags"):
        text += " fsdp"
    sharding = _named(text) or ("zero1" if _FIRST.search(words(row, "flags")) else None)
    sharding = sharding or stack.usual_sharding
    if sharding == "ddp":
        return "ddp", 1
    group = _group(text, sharding, ranks, node)
    if group == 1 and sharding in ("fsdp", "hsdp"):
        return stack.usual_sharding, 1
    replicas = ranks // group if 0 < group <= ranks and ranks % group == 0 else 1
    if sharding == "fsdp" and replicas > 1:
        return "hsdp", replicas
    return ("fsdp" if sharding == "hsdp" and replicas == 1 else sharding), replicas


def _named(text: str) -> Sharding | None:
    if _HYBRID.search(text):
        return "hsdp"
    if _SECOND.search(text):
        return "zero2"
    if _FIRST.search(text):
        return "zero1"
    if _FULL.search(text):
        return "fsdp" if "fsdp" in text else "zero3"
    return None


def _group(text: str, sharding: Sharding, ranks: int, node: int) -> int:
    """Ranks over which something is sharded; -1 and what is not stated mean all."""
    stated = _GROUP.search(text)
    if stated and int(stated[1]) > 0:
        return int(stated[1])
    copies = _COPIES.search(text)
    if copies and sharding in ("fsdp", "hsdp") and int(copies[1]) > 0:
        return max(ranks // int(copies[1]), 1)
    return min(node, ranks) if sharding == "hsdp" else ranks
