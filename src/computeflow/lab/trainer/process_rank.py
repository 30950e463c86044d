"""Ranks of a training run: process group, DDP or FSDP2, and the watchdog that dumps a hang."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from computeflow.errors import InputError, UnavailableError
from computeflow.files.writing import write_file
from computeflow.lab.trainer.trainer_settings import TrainerSettings

_HANG_EXIT = 17
_GRACE_SECONDS = 5.0
"""Time for the others to dump, as a launcher ends all ranks when one ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRank:
    rank: int
    world: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0


@contextlib.contextmanager
def join_ranks(settings: TrainerSettings) -> Iterator[ProcessRank]:
    """Join this process to its peers, as torchrun (or Slurm through it) set the environment."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = _device(settings, local)
    if settings.sharding == "none" and world > 1:
        raise InputError(f"{world} ranks need --sharding ddp or fsdp")
    if world == 1 and settings.sharding == "none":
        yield ProcessRank(rank=0, world=1, device=device)
        return
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    for name, value in (
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29511"),
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
    ):
        os.environ.setdefault(name, value)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield ProcessRank(rank=dist.get_rank(), world=dist.get_world_size(), device=device)
    finally:
        dist.destroy_process_group()


def _device(settings: TrainerSettings, local: int) -> torch.device:
    if settings.device == "cpu" or (settings.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UnavailableError("no CUDA device is visible to torch; use --device cpu")
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def shard(model: nn.Module, settings: TrainerSettings, ranks: ProcessRank) -> nn.Module:
    if settings.sharding == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        ids = [ranks.device.index] if ranks.device.type == "cuda" else None
        return DistributedDataParallel(
            model, device_ids=ids, gradient_as_bucket_view=True, broadcast_buffers=False
        )
    if settings.sharding == "fsdp":
        _fully_shard(model, settings, ranks)
    return model


def _fully_shard(model: nn.Module, settings: TrainerSettings, ranks: ProcessRank) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    policy = MixedPrecisionPolicy()
    if settings.precision == "amp":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


@contextlib.contextmanager
def gradients_kept_local(
    model: nn.Module, settings: TrainerSettings, local: bool
) -> Iterator[None]:
    """Reduce no gradients in all but the last micro-batch of a step."""
    if settings.sharding == "ddp" and local:
        with model.no_sync():  # type: ignore[operator]
            yield
        return
    if settings.sharding == "fsdp":
        model.set_requires_gradient_sync(not local)  # type: ignore[operator]
    yield


class Watchdog:
    """Dumps the flight recorder and ends the process when no step finishes for too long."""

    def __init__(self, settings: TrainerSettings, rank: int) -> None:
        self.limit_seconds = settings.hang_seconds
        self.folder = settings.flight_folder
        self.rank = rank
        self._last = time.monotonic()
        if self.limit_seconds > 0:
            threading.Thread(target=self._watch, daemon=True).start()

    def step_done(self) -> None:
        self._last = time.monotonic()

    def _watch(self) -> None:
        while time.monotonic() - self._last < self.limit_seconds:
            time.sleep(0.05)
        if self.folder:
            _dump_flight_recorder(Path(self.folder) / f"rank_{self.rank}")
        print(f"rank {self.rank}: no step for {self.limit_seconds:g} s, stopping", flush=True)
        time.sleep(_GRACE_SECONDS)
        os._exit(_HANG_EXIT)


def _dump_flight_recorder(path: Path) -> bool:
    """Write this rank's recorded collectives, as torch pickles them; False where torch has none."""
    dump: Any = getattr(torch._C._distributed_c10d, "_dump_fr_trace", None)
    if dump is None:
        dump = getattr(torch._C._distributed_c10d, "_dump_nccl_trace", None)
    if dump is None:
        return False
    write_file(path, dump(), "--flight-folder", force=True, make_folder=True)
    return True
