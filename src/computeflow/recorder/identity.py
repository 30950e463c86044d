"""Who this process is: rank, host, attempt, and how it was set up."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from pathlib import Path
from typing import Any

_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_WORLD = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_ATTEMPT = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_MAX_DIGITS = 7
"""Digits of a rank: a longer number is none."""


def rank_and_world() -> tuple[int, int, int]:
    """Rank, world size and local rank, of torch.distributed where it runs, else of the launcher."""
    rank, world = _number(_RANK, 0), _number(_WORLD, 1)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world = distributed.get_rank(), distributed.get_world_size()
    return rank, max(world, rank + 1), _number(_LOCAL, 0)


def attempt_number() -> int:
    return _number(_ATTEMPT, 0)


def _number(names: tuple[str, ...], default: int) -> int:
    for name in names:
        text = os.environ.get(name, "")
        if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
            return int(text)
    return default


def start_record(rank: int, world: int, local_rank: int, attempt: int) -> dict[str, Any]:
    """The first record of a file, but for its device."""
    return {
        "k": "start",
        "v": 1,
        "rank": rank,
        "world": world,
        "local_rank": local_rank,
        "attempt": attempt,
        "host": socket.gethostname(),
        "node": os.environ.get("SLURMD_NODENAME", ""),
        "pid": os.getpid(),
        "unix_ns": time.time_ns(),
        "began_us": -round(_age_seconds() * 1e6),
        "framework": [
            name
            for name in (
                "accelerate deepspeed jax lightning megatron pytorch_lightning ray torchtitan "
                "transformers"
            ).split()
            if name in sys.modules
        ],
        "versions": {"python": platform.python_version()}
        | {
            name: str(getattr(sys.modules[name], "__version__", ""))[:40]
            for name in ("torch", "jax", "transformers")
            if name in sys.modules
        },
    }


def began_ns() -> int:
    """When this process began, nanoseconds of Unix time; now, where the system does not say."""
    return time.time_ns() - round(_age_seconds() * 1e9)


def _age_seconds() -> float:
    """How long this process has run; 0 where the system does not say."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return max(0.0, uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0
