"""The ways to cut a job: `Layout`, and `Layouts`, many layouts as one struct of arrays.

`refusals` is the input gate: it says of every layout why it is impossible, and changes nothing.
Everything after the gate may rely on whole divisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from computeflow.catalog.models import Model
from computeflow.errors import InputError, UnknownNameError
from computeflow.workload.job import MAX_SIZE, Job

Recompute = Literal["none", "selective", "full"]
Sharding = Literal["ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp"]
Schedule = Literal["1f1b", "zero-bubble", "zbv", "dualpipe"]
Offload = Literal["none", "optimizer", "parameters", "activations", "nvme"]
Ring = Literal["ring", "all-to-all"]
RECOMPUTES: tuple[str, ...] = get_args(Recompute)
SCHEDULES: tuple[str, ...] = get_args(Schedule)
OFFLOADS: tuple[str, ...] = get_args(Offload)
RINGS: tuple[str, ...] = get_args(Ring)
SHARDINGS: tuple[str, ...] = get_args(Sharding)

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    gpus: int
    tp: int = 1
    pp: int = 1
    vp: int = 1
    """Model chunks on a pipeline stage (interleaved schedule)."""
    cp: int = 1
    ep: int = 1
    """Ranks over which the experts of a layer are spread; they lie inside tp x cp x dp."""
    etp: int = 1
    """Ranks over which one expert is cut: 1, or tp."""
    micro_batch: int = 1
    recompute: Recompute = "none"
    sharding: Sharding = "zero1"
    replicas: int = 1
    """Groups that each hold once what is sharded: the model (hsdp), the optimizer's state (zero1)."""
    schedule: Schedule = "1f1b"
    """Pipeline schedule; 1f1b with vp > 1 is its interleaved form."""
    offload: Offload = "none"
    """Data kept in the host's memory: the optimizer's state, also the weights (parameters), or the
    activations; nvme: state and weights on disk."""
    context: Ring = "ring"
    """How context-parallel ranks attend to each other: keys and values around a ring, or heads
    exchanged for tokens (all-to-all)."""

    def __post_init__(self) -> None:
        sizes = {n: getattr(self, n) for n in SIZES}
        if wrong := [name for name, size in sizes.items() if not 1 <= size <= MAX_SIZE]:
            raise InputError(f"{wrong[0]}: sizes of a layout lie between 1 and {MAX_SIZE:,}")
        for field, names in CHOICES.items():
            if getattr(self, field) not in names:
                raise UnknownNameError(field, getattr(self, field), names)


CHOICES = {
    "recompute": RECOMPUTES,
    "sharding": SHARDINGS,
    "schedule": SCHEDULES,
    "offload": OFFLOADS,
    "context": RINGS,
}
SIZES = ("gpus", "tp", "pp", "vp", "cp", "ep", "etp", "micro_batch", "replicas")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Many layouts of one job; choices (`recompute`, `sharding`, ...) are indices into their names."""

    gpus: Ints
    tp: Ints
    pp: Ints
    vp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    micro_batch: Ints
    replicas: Ints
    recompute: Ints
    sharding: Ints
    schedule: Ints
    offload: Ints
    context: Ints

    @classmethod
    def of(cls, layouts: Iterable[Layout]) -> Layouts:
        rows = list(layouts)
        arrays = {name: np.array([getattr(row, name) for row in rows], np.int64) for name in SIZES}
        for name, names in CHOICES.items():
            arrays[name] = np.array([names.index(getattr(row, name)) for row in rows], np.int64)
        return cls(**arrays)

    def __len__(self) -> int:
        return len(self.gpus)

    def __getitem__(self, index: int) -> Layout:
        sizes: dict[str, Any] = {name: int(getattr(self, name)[index]) for name in SIZES}
        chosen = {name: names[getattr(self, name)[index]] for name, names in CHOICES.items()}
        return Layout(**sizes, **chosen)

    def where(self, rows: Mask | Ints) -> Layouts:
        return Layouts(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @classmethod
    def concatenate(cls, parts: Sequence[Layouts]) -> Layouts:
        return cls(
            **{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)}
        )

    def with_choices(self, **indices: int) -> Layouts:
        """The same layouts with some choices set for all, by index into their names."""
        rows = len(self)
        return replace(self, **{n: np.full(rows, i, np.int64) for n, i in indices.items()})

    @property
    def dp(self) -> Ints:
        return self.gpus // (self.tp * self.pp * self.cp)

    def micro_batches(self, job: Job) -> Ints:
        """Micro-batches that one pipeline works through in a step."""
        return job.global_batch // (self.dp * self.micro_batch)

    def has(self, field: str, *names: str) -> Mask:
        """Where a choice (`recompute`, `sharding`, ...) is one of `names`."""
        chosen = getattr(self, field)
        has = np.zeros(len(chosen), bool)
        for name in names:  # `np.isin` takes five times as long for so few
            has |= chosen == CHOICES[field].index(name)
        return has


def refusals(job: Job, layouts: Layouts) -> dict[str, Mask]:
    """Why layouts are impossible: reason to the layouts it holds for."""
    group = layouts.tp * layouts.pp * layouts.cp
    dp = np.maximum(layouts.gpus // group, 1)
    per_replica = dp * layouts.micro_batch
    chunks = layouts.pp * layouts.vp
    reasons = {
        "tp x pp x cp does not divide the GPUs": layouts.gpus % group != 0,
        "micro-batch x dp does not divide the global batch": job.global_batch % per_replica != 0,
        # interleaved, embedding and head may be chunks of their own (Llama 3.1 405B: 126 + 2)
        "more pipeline chunks than layers": chunks > job.model.layers + 2 * (layouts.vp > 1),
        "interleaving (vp) without a pipeline": (layouts.vp > 1) & (layouts.pp == 1),
        "a schedule without a pipeline": (layouts.pp == 1) & ~layouts.has("schedule", "1f1b"),
        "an exchange of heads without context parallelism": (layouts.cp == 1)
        & layouts.has("context", "all-to-all"),
        "interleaving needs micro-batches in multiples of pp": (layouts.vp > 1)
        & (job.global_batch // per_replica % layouts.pp != 0),
        "cp does not divide the sequence into pairs": (layouts.cp > 1)
        & (job.seq_len % (2 * layouts.cp) != 0),
        "replicas do not divide dp": dp % layouts.replicas != 0,
        "replicas without groups (hsdp, zero1, zero2, zero3)": (layouts.replicas > 1)
        & layouts.has("sharding", "ddp", "fsdp"),
        "interleaving (vp) with a schedule other than 1f1b": (layouts.vp > 1)
        & ~layouts.has("schedule", "1f1b"),
        "dualpipe needs an even pipeline and twice as many micro-batches": layouts.has(
            "schedule", "dualpipe"
        )
        & ((layouts.pp % 2 != 0) | (job.global_batch // per_replica < 2 * layouts.pp)),
        "weights on the host or disk need sharding (fsdp, zero3)": layouts.has(
            "offload", "parameters", "nvme"
        )
        & ~layouts.has("sharding", "fsdp", "zero3", "hsdp"),
        "ep x etp does not divide tp x cp x dp": layouts.tp
        * layouts.cp
        * dp
        % (layouts.ep * layouts.etp)
        != 0,
        "etp is neither 1 nor tp": (layouts.etp != 1) & (layouts.etp != layouts.tp),
    }
    reasons |= _expert_refusals(job.model, layouts) | _head_refusals(job.model, layouts)
    for size in dict.fromkeys(b.dense.width for b in job.model.blocks if b.dense is not None):
        reasons[f"tp does not divide the feed-forward width {size}"] = size % layouts.tp != 0
    return {reason: mask for reason, mask in reasons.items() if mask.any()}


def _expert_refusals(model: Model, layouts: Layouts) -> dict[str, Mask]:
    experts = [b.experts for b in model.blocks if b.experts is not None]
    if not experts:
        return {"expert parallelism without experts": (layouts.ep > 1) | (layouts.etp > 1)}
    reasons: dict[str, Mask] = {}
    for size in dict.fromkeys(e.count for e in experts):
        reasons[f"ep does not divide {size} experts"] = size % layouts.ep != 0
    for size in dict.fromkeys(e.width for e in experts):
        reasons[f"etp does not divide the experts' width {size}"] = size % layouts.etp != 0
    return reasons


def _head_refusals(model: Model, layouts: Layouts) -> dict[str, Mask]:
    heads = [b.attention.heads for b in model.blocks if b.attention is not None]
    heads += [b.latent.heads for b in model.blocks if b.latent is not None]
    exchanged = layouts.has("context", "all-to-all")
    reasons: dict[str, Mask] = {}
    for size in dict.fromkeys(heads):
        uneven = size % (layouts.tp * layouts.cp) != 0
        reason = f"all-to-all context parallelism: tp x cp does not divide {size} heads"
        reasons[reason] = exchanged & uneven
        reasons[f"tp does not divide {size} attention heads"] = size % layouts.tp != 0
    return reasons


def check_layout(job: Job, layout: Layout) -> None:
    """Refuse an impossible layout with all the reasons."""
    if reasons := refusals(job, Layouts.of([layout])):
        raise InputError(f"impossible layout: {'; '.join(reasons)}")
