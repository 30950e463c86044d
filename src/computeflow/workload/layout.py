"""A job and the ways to cut it: `Job`, `Layout`, and `Layouts`, many layouts as one struct of arrays.

`refusals` is the input gate: it says of every layout why it is impossible, and changes nothing.
Everything after the gate may rely on whole divisions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from computeflow.catalog.models import Model
from computeflow.errors import InputError, UnknownNameError

Recompute = Literal["none", "selective", "full"]
Sharding = Literal["ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp"]
RECOMPUTES: tuple[str, ...] = get_args(Recompute)
SHARDINGS: tuple[str, ...] = get_args(Sharding)
MOST = 10**9
"""Of any one size; far above what exists, far below what overflows."""
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
OPTIMIZERS = ("adamw", "adam8bit", "muon")

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    model: Model
    global_batch: int
    """Sequences in a step."""
    seq_len: int
    precision: str = "bf16"
    optimizer: str = "adamw"
    bytes_per_token: float = 4.0
    """Read from storage; 4 is one token number, images and sound are far more."""
    checkpoint_steps: int | None = None
    """Steps between two checkpoints; none are written where it is not given."""
    tokens: float | None = None
    """To train on, where a whole run is asked about."""

    def __post_init__(self) -> None:
        if not all(1 <= size <= MOST for size in (self.global_batch, self.seq_len)):
            raise InputError(f"global_batch and seq_len lie between 1 and {MOST:,}")
        if not 0 <= self.bytes_per_token < float("inf"):
            raise InputError(f"bytes_per_token = {self.bytes_per_token}: zero or more")
        if self.checkpoint_steps is not None and self.checkpoint_steps < 1:
            raise InputError(f"checkpoint_steps = {self.checkpoint_steps}: one step or more")
        if self.precision not in PRECISIONS:
            raise UnknownNameError("precision", self.precision, PRECISIONS)
        if self.optimizer not in OPTIMIZERS:
            raise UnknownNameError("optimizer", self.optimizer, OPTIMIZERS)

    @property
    def step_tokens(self) -> int:
        return self.global_batch * self.seq_len


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    gpus: int
    tp: int = 1
    pp: int = 1
    vp: int = 1
    """Model chunks on a pipeline stage (interleaved schedule)."""
    cp: int = 1
    micro_batch: int = 1
    recompute: Recompute = "none"
    sharding: Sharding = "zero1"
    replicas: int = 1
    """With hsdp: groups that each hold the model once."""

    def __post_init__(self) -> None:
        sizes = {n: getattr(self, n) for n in _SIZES}
        if wrong := [name for name, size in sizes.items() if not 1 <= size <= MOST]:
            raise InputError(f"{wrong[0]}: sizes of a layout lie between 1 and {MOST:,}")
        if self.recompute not in RECOMPUTES:
            raise UnknownNameError("recompute", self.recompute, RECOMPUTES)
        if self.sharding not in SHARDINGS:
            raise UnknownNameError("sharding", self.sharding, SHARDINGS)


_SIZES = ("gpus", "tp", "pp", "vp", "cp", "micro_batch", "replicas")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Many layouts of one job; `recompute` and `sharding` are indices into their names."""

    gpus: Ints
    tp: Ints
    pp: Ints
    vp: Ints
    cp: Ints
    micro_batch: Ints
    recompute: Ints
    sharding: Ints
    replicas: Ints

    @classmethod
    def of(cls, layouts: Iterable[Layout]) -> Layouts:
        rows = list(layouts)
        arrays = {name: np.array([getattr(row, name) for row in rows], np.int64) for name in _SIZES}
        return cls(
            **arrays,
            recompute=np.array([RECOMPUTES.index(row.recompute) for row in rows], np.int64),
            sharding=np.array([SHARDINGS.index(row.sharding) for row in rows], np.int64),
        )

    def __len__(self) -> int:
        return len(self.gpus)

    def __getitem__(self, place: int) -> Layout:
        sizes = {name: int(getattr(self, name)[place]) for name in _SIZES}
        return Layout(
            **sizes,
            recompute=RECOMPUTES[self.recompute[place]],
            sharding=SHARDINGS[self.sharding[place]],
        )

    def where(self, mask: Mask) -> Layouts:
        return Layouts(**{f.name: getattr(self, f.name)[mask] for f in fields(self)})

    @property
    def dp(self) -> Ints:
        return self.gpus // (self.tp * self.pp * self.cp)

    def micro_batches(self, job: Job) -> Ints:
        """Micro-batches that one pipeline works through in a step."""
        return job.global_batch // (self.dp * self.micro_batch)

    def has_recompute(self, name: Recompute) -> Mask:
        return np.asarray(self.recompute == RECOMPUTES.index(name))

    def has_sharding(self, *names: Sharding) -> Mask:
        return np.isin(self.sharding, [SHARDINGS.index(name) for name in names])


def refusals(job: Job, layouts: Layouts) -> dict[str, Mask]:
    """Why layouts are impossible: reason to the layouts it holds for."""
    attention = [b.attention for b in job.model.blocks if b.attention is not None]
    heads = [a.heads for a in attention] + [
        b.latent.heads for b in job.model.blocks if b.latent is not None
    ]
    widths = [b.dense.width for b in job.model.blocks if b.dense is not None]
    group = layouts.tp * layouts.pp * layouts.cp
    dp = np.maximum(layouts.gpus // group, 1)
    per_replica = dp * layouts.micro_batch
    chunks = layouts.pp * layouts.vp
    found = {
        "tp x pp x cp does not divide the GPUs": layouts.gpus % group != 0,
        "micro-batch x dp does not divide the global batch": job.global_batch % per_replica != 0,
        "more pipeline chunks than layers": chunks > job.model.layers,
        "interleaving (vp) without a pipeline": (layouts.vp > 1) & (layouts.pp == 1),
        "interleaving needs micro-batches in multiples of pp": (layouts.vp > 1)
        & (job.global_batch // per_replica % layouts.pp != 0),
        "cp does not divide the sequence into pairs": (layouts.cp > 1)
        & (job.seq_len % (2 * layouts.cp) != 0),
        "replicas do not divide dp": dp % layouts.replicas != 0,
        "replicas without hsdp": (layouts.replicas > 1) & ~layouts.has_sharding("hsdp"),
    }
    for size in dict.fromkeys(heads):
        found[f"tp does not divide {size} attention heads"] = np.asarray(size % layouts.tp != 0)
    for size in dict.fromkeys(widths):
        found[f"tp does not divide the feed-forward width {size}"] = np.asarray(
            size % layouts.tp != 0
        )
    return {reason: mask for reason, mask in found.items() if mask.any()}


def check(job: Job, layout: Layout) -> None:
    """Refuse an impossible layout with all the reasons."""
    if reasons := refusals(job, Layouts.of([layout])):
        raise InputError(f"impossible layout: {'; '.join(reasons)}")
