"""Every way to cut a job over so many GPUs: `Space` holds the values of each field of a `Layout`.

The space is the product of all of them, and `enumerated` counts that product. It is walked in three
parts, so that most of it is never written down: sizes (tp, pp, vp, cp, ep, etp, micro-batch) that
cannot be are dropped first; what is left meets the choices (sharding, schedule, context) that can be;
recomputation and offload come last, as a ladder, because a layout that fits needs no more of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from computeflow.errors import InputError
from computeflow.planning.limits import (
    MAX_CUTS,
    MAX_LAYOUTS,
    MAX_MICRO_BATCH,
    MAX_TP,
    MAX_VP,
    MIN_CONTEXT_TOKENS,
)
from computeflow.workload import Job, Layouts, refusals
from computeflow.workload.layout import CHOICES, SIZES, Ints, Mask

CHUNK = 1 << 15
"""Layouts evaluated together: few enough for the processor's cache."""
_AT_ONCE = 1 << 18
"""Sizes that are written down together."""
_RANKS, _SHARES = ("tp", "pp", "vp", "cp"), ("ep", "etp", "micro_batch")
"""Sizes that cut the GPUs, and those that cut what each of them has."""
_AS_TP = 0
"""Stands for "like tp" among the values of etp."""
_VARIANTS = ("sharding", "replicas", "schedule", "context")
_LADDER = ("offload", "recompute")


@dataclass(frozen=True, slots=True)
class Space:
    """The values of every field of a layout but its GPUs: sizes as numbers, choices as indices."""

    values: Mapping[str, list[int]]

    def __len__(self) -> int:
        return prod(len(values) for values in self.values.values())

    def size(self, names: tuple[str, ...]) -> int:
        return prod(len(self.values[name]) for name in names)


def space_of(
    job: Job,
    gpus: int,
    fixed: Mapping[str, Any] | None = None,
    allowed: Mapping[str, tuple[str, ...]] | None = None,
) -> Space:
    """All layouts of a job; `fixed` fields have one value, `allowed` narrows choices by name."""
    experts = [block.experts.count for block in job.model.blocks if block.experts is not None]
    values: dict[str, list[int]] = {
        "tp": _divisors(gpus, MAX_TP),
        "pp": _divisors(gpus, job.model.layers),
        "vp": list(range(1, min(MAX_VP, job.model.layers) + 1)),
        "cp": _divisors(gpus, max(job.seq_len // MIN_CONTEXT_TOKENS, 1)),
        "ep": _divisors(gpus, max(experts, default=1)),
        "etp": [1, _AS_TP] if experts else [1],
        "micro_batch": _divisors(job.global_batch, MAX_MICRO_BATCH),
        "replicas": _divisors(gpus),
    }
    for name, names in CHOICES.items():
        chosen = (allowed or {}).get(name, _USUAL.get(name, names))
        values[name] = [_number(name, choice) for choice in chosen]
    values |= {name: [_number(name, value)] for name, value in (fixed or {}).items()}
    return Space(values)


def _number(name: str, value: Any) -> int:
    """A size as it is, a choice by its index among the names."""
    return CHOICES[name].index(value) if name in CHOICES else int(value)


_USUAL = {"sharding": ("ddp", "zero1", "zero2", "fsdp", "hsdp")}
"""zero3 is fsdp by another name: the same bytes and messages."""


def _divisors(number: int, most: int | None = None) -> list[int]:
    """Divisors of a number, in order, up to `most`."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    every = sorted({*small, *(number // d for d in small)})
    return [d for d in every if most is None or d <= most]


@dataclass(slots=True)
class LayoutCounts:
    """Layouts of a space: enumerated, pruned, evaluated."""

    enumerated: int = 0
    pruned: dict[str, int] = field(default_factory=dict)
    """The reason that ruled layouts out first, to how many."""
    evaluated: int = 0
    beyond: dict[str, int] = field(default_factory=dict)
    """Evaluated layouts that a limit ruled out, by limit."""

    def prune(self, reason: str, layouts: int) -> None:
        if layouts:
            self.pruned[reason] = self.pruned.get(reason, 0) + layouts


def possible(
    job: Job, gpus: int, space: Space, count: LayoutCounts
) -> Iterator[tuple[Layouts, float]]:
    """Chunks of possible layouts, without recomputation and offload, and the progress so far."""
    count.enumerated += len(space)
    rungs = space.size(_LADDER)
    cuts = _cuts(job, gpus, space, count)
    variants = _combined(gpus, _product(space, _VARIANTS))
    _check_size("layouts", len(cuts) * len(variants), MAX_LAYOUTS, job, gpus)
    each = max(CHUNK // max(len(variants), 1), 1)
    waiting: list[Layouts] = []
    for start in range(0, len(cuts), each):
        some = cuts.where(np.arange(start, min(start + each, len(cuts))))
        waiting.append(_gated(job, _crossed(some, variants), count, rungs))
        done = min((start + each) / len(cuts), 1.0)
        if sum(map(len, waiting)) >= CHUNK or done == 1.0:
            yield Layouts.concatenate(waiting), done
            waiting = []


def _cuts(job: Job, gpus: int, space: Space, count: LayoutCounts) -> Layouts:
    """Possible sizes: those of the ranks first, and only these with all shares."""
    weight = space.size(_VARIANTS) * space.size(_LADDER)
    shares = _product(space, _SHARES)
    each = space.size(_SHARES)
    _check_size("combinations of sizes", space.size(_RANKS), MAX_CUTS, job, gpus)
    ranks = _gated(job, _combined(gpus, _product(space, _RANKS)), count, weight * each)
    _check_size("combinations of sizes", len(ranks) * each, MAX_CUTS, job, gpus)
    step = max(_AT_ONCE // each, 1)
    parts = [ranks.where(np.arange(0))]
    for start in range(0, len(ranks), step):
        some = ranks.where(np.arange(start, min(start + step, len(ranks))))
        columns = {name: np.repeat(getattr(some, name), each) for name in _RANKS}
        columns |= {name: np.tile(values, len(some)) for name, values in shares.items()}
        parts.append(_gated(job, _combined(gpus, columns), count, weight))
    return Layouts.concatenate(parts)


def _check_size(what: str, size: int, most: int, job: Job, gpus: int) -> None:
    if size > most:
        raise InputError(
            f"{gpus:,} GPUs and a batch of {job.global_batch:,} divide into {size:,} {what}; at most "
            f"{most:,} are searched: fix some (--fix tp=8, --fix micro_batch=1, --fix vp=1), or take "
            "numbers with fewer divisors"
        )


def _product(space: Space, names: tuple[str, ...]) -> dict[str, Ints]:
    """All combinations of some fields."""
    values = [np.array(space.values[name], np.int64) for name in names]
    grid = np.meshgrid(*values, indexing="ij")
    return {name: column.ravel() for name, column in zip(names, grid, strict=True)}


def _combined(gpus: int, columns: dict[str, Ints]) -> Layouts:
    """Layouts of these fields; the others are one, or the first choice."""
    if "etp" in columns:
        whole = (columns["etp"] == _AS_TP) & (
            columns["tp"] == 1
        )  # cut over one rank: refused as etp 2
        columns["etp"] = np.where(columns["etp"] == _AS_TP, columns["tp"], columns["etp"]) + whole
    rows = len(next(iter(columns.values())))
    usual = {name: np.ones(rows, np.int64) for name in SIZES} | {
        name: np.zeros(rows, np.int64) for name in CHOICES
    }
    return Layouts(**(usual | columns | {"gpus": np.full(rows, gpus, np.int64)}))


def _crossed(cuts: Layouts, variants: Layouts) -> Layouts:
    """Every cut with every variant."""
    columns: dict[str, Ints] = {}
    for name in (*SIZES, *CHOICES):
        if name in _VARIANTS:
            columns[name] = np.tile(getattr(variants, name), len(cuts))
        else:
            columns[name] = np.repeat(getattr(cuts, name), len(variants))
    return Layouts(**columns)


def _gated(job: Job, layouts: Layouts, count: LayoutCounts, weight: int) -> Layouts:
    """Possible layouts; the others are counted, `weight` times each, by their first reason."""
    left = np.ones(len(layouts), bool)
    for reason, mask in {**refusals(job, layouts), **_repeats(job, layouts)}.items():
        count.prune(reason, int((left & mask).sum()) * weight)
        left &= ~mask
    return layouts.where(left)


def _repeats(job: Job, layouts: Layouts) -> dict[str, Mask]:
    """Layouts that are another one by a different name, or that no framework runs.

    Chunks cut the layers evenly, or with embedding and head counted as layers (Llama 3: 126 + 2).
    """
    layers, chunks = job.model.layers, layouts.pp * layouts.vp
    return {
        "zero1, zero2 and zero3 in groups are not searched": (layouts.replicas > 1)
        & layouts.has("sharding", "zero1", "zero2", "zero3"),
        "chunks (vp) do not cut the layers evenly": (layouts.vp > 1)
        & (layers % chunks != 0)
        & ((layers + 2) % chunks != 0),
        "hsdp with one replica is fsdp": layouts.has("sharding", "hsdp") & (layouts.replicas == 1),
        "hsdp with a pipeline: weights stay gathered, as under fsdp": layouts.has(
            "sharding", "hsdp"
        )
        & (layouts.pp > 1),
        "sharding without data-parallel ranks": (layouts.dp * layouts.cp == 1)
        & ~layouts.has("sharding", "ddp", "zero1"),
    }
