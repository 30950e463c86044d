"""Training batches: synthetic, or read from a memory-mapped file of tokens, through torch's own
loader.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from computeflow.errors import InputError
from computeflow.lab.trainer.trainer_settings import TrainerSettings


class Sequences(IterableDataset[Tensor]):
    """An endless stream of `seq_len + 1` tokens; each rank and worker draws its own."""

    def __init__(self, settings: TrainerSettings, rank: int) -> None:
        self.settings = settings
        self.rank = rank
        delays = [
            f.severity for f in settings.faults if f.kind == "slow-loader" and f.hits(rank, 0)
        ]
        self.delay_seconds = sum(delays)
        if settings.data != "synthetic" and not Path(settings.data).is_file():
            raise InputError(f"{settings.data}: no such token file")
        if (
            settings.data != "synthetic"
            and len(_read_tokens(settings.data)) <= settings.seq_len + 1
        ):
            raise InputError(
                f"{settings.data}: fewer tokens than one sequence of {settings.seq_len}"
            )

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        number = worker.id if worker else 0
        draw = random.Random(f"{self.settings.seed} {self.rank} {number}")
        length = self.settings.seq_len + 1
        tokens = None if self.settings.data == "synthetic" else _read_tokens(self.settings.data)
        generator = torch.Generator().manual_seed(draw.getrandbits(48))
        while True:
            if self.delay_seconds:
                time.sleep(self.delay_seconds)
            if tokens is None:
                yield torch.randint(self.settings.vocab, (length,), generator=generator)
            else:
                start = draw.randrange(len(tokens) - length)
                yield tokens[start : start + length].long() % self.settings.vocab


def _read_tokens(path: str) -> Tensor:
    """A flat token file as a mapped tensor; `.u32` files hold four bytes a token, others two."""
    kind = torch.int32 if path.endswith(".u32") else torch.uint16
    size = Path(path).stat().st_size // kind.itemsize
    if not size:
        return torch.empty(0, dtype=kind)
    return torch.from_file(path, shared=False, size=size, dtype=kind)


def batches(settings: TrainerSettings, rank: int, *, pin: bool) -> Iterator[Tensor]:
    loader = DataLoader(
        Sequences(settings, rank),
        batch_size=settings.micro_batch,
        num_workers=settings.workers,
        pin_memory=pin,
        prefetch_factor=2 if settings.workers else None,
        persistent_workers=bool(settings.workers),
    )
    return iter(loader)
