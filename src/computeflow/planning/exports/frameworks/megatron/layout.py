"""Layouts that Megatron Core can run, in its own names, for the formats that end in it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from computeflow.planning.exports.config_formats import Setup
from computeflow.planning.exports.frameworks.config_keys import ConfigKeys, contradiction

SHARDINGS = ("ddp", "zero1", "zero2", "fsdp", "hsdp")
OFFLOADS = ("none", "optimizer", "activations")
STRATEGIES = {
    "zero2": "optim_grads",
    "fsdp": "optim_grads_params",
    "zero3": "optim_grads_params",
    "hsdp": "optim_grads_params",
}
STRATEGY_MEANT = {
    "no_shard": "ddp",
    "optim": "zero1",
    "optim_grads": "zero2",
    "optim_grads_params": "fsdp",
}
FP8_RECIPES = {"fp8": "tensorwise", "fp8-block": "blockwise", "mxfp8": "mxfp8"}
FP8_MEANT = {theirs: ours for ours, theirs in FP8_RECIPES.items()} | {"delayed": "fp8"}
WAYS = {"ring": "p2p", "all-to-all": "a2a"}
WAY_MEANT = {"p2p": "ring", "a2a": "all-to-all", "allgather": "ring", "a2a+p2p": "all-to-all"}


def refuse(setup: Setup, framework: str) -> None:
    """Layouts that Megatron Core stops at."""
    layout = setup.layout
    if layout.offload == "activations":
        for name, value in beside_offloading({"pp": layout.pp, "recompute": layout.recompute}):
            why = "activations move to the host without pipeline and recomputation only"
            raise contradiction(framework, "offload = activations", f"{name} = {value}", why)
    if layout.offload == "optimizer" and layout.sharding == "ddp":
        why = "its state on the host needs the distributed optimizer (zero1)"
        raise contradiction(framework, "offload = optimizer", "sharding = ddp", why)
    if layout.context == "all-to-all" and layout.cp > 1:
        _refuse_exchange(setup, framework)


def beside_offloading(layout: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Features of a layout that exclude activations on the host."""
    plain = {"pp": 1, "recompute": "none"}
    return [(name, layout[name]) for name in plain if layout.get(name, plain[name]) != plain[name]]


def _refuse_exchange(setup: Setup, framework: str) -> None:
    ranks = setup.layout.tp * setup.layout.cp
    groups = [b.attention.kv_heads for b in setup.job.model.blocks if b.attention is not None]
    if odd := [g for g in groups if g % ranks]:
        heads = f"{odd[0]} key/value heads"
        raise contradiction(framework, f"tp x cp = {ranks}", heads, "heads are exchanged whole")


def stages(layers: int, chunks: int) -> str:
    """Layers of every chunk as even as they go: E embedding, t a layer, L the loss."""
    ends = [layers * chunk // chunks for chunk in range(chunks + 1)]
    parts = ["t" * (end - start) for start, end in pairwise(ends)]
    return "E" + "|".join(parts) + "L"


def dispatcher(setup: Setup) -> str:
    return "alltoall" if setup.stack.dispatcher == "alltoall" else "flex"


def chunks_of_layout(text: str, pp: int, key: str, settings: ConfigKeys, notes: list[str]) -> int:
    """Model chunks of a stage, of a pipeline layout like `Ett|tt|ttL`."""
    if "*" in text:
        notes.append(f"{key} {text}: vp taken for 1")
        return 1
    value, rest = divmod(text.count("|") + 1, pp)
    if rest:
        raise settings.against(f"{key} of {value * pp + rest} parts", f"pp = {pp}", "uneven")
    return value


def sharding_of(
    strategy: str | None, replicas: int, keys: tuple[str, str], settings: ConfigKeys
) -> dict[str, Any]:
    """Sharding under Megatron's FSDP; `keys` are the file's names of its copies and of its strategy."""
    sharding = strategy or "fsdp"
    if replicas > 1 and sharding != "fsdp":
        raise settings.against(
            f"{keys[0]} = {replicas}", f"{keys[1]} of {sharding}", "copies need all of it sharded"
        )
    return {"sharding": "hsdp" if replicas > 1 else sharding, "replicas": replicas}
