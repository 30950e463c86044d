"""The host: how many CPUs it says, how much CPU it gives, and how the device is attached to them."""

from __future__ import annotations

import multiprocessing
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    name: str
    cpus: int
    """CPUs this process may run on."""
    quota_cpus: float | None
    """The limit that the control group states, if it states one."""
    delivered_cpus: float
    """CPU time that as many busy processes really got, per second; the best of three tries."""
    loop_seconds: float
    """CPU time of a fixed piece of Python: how fast one core is."""
    memory_bytes: int
    numa_nodes: int
    affinity: tuple[int, ...]


def examine_host(seconds: float = 0.5) -> Host:
    affinity = tuple(sorted(os.sched_getaffinity(0)))
    return Host(
        name=platform.node(),
        cpus=len(affinity),
        quota_cpus=cgroup_quota(),
        delivered_cpus=max(delivered_cpus(len(affinity), seconds) for _ in range(3)),
        loop_seconds=min(_loop() for _ in range(5)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        numa_nodes=max(1, len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))),
        affinity=affinity,
    )


def cgroup_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """CPUs by `cpu.max` (v2) or `cpu.cfs_quota_us` (v1); None where nothing limits."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        allowed = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        per = int((root / "cpu" / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return allowed / per if allowed > 0 else None


def delivered_cpus(processes: int, seconds: float) -> float:
    """Keep every CPU busy for a moment; the CPU time that came of it, per second of wall clock.

    A quota, a stopped core or a busy neighbour shows here although each process is healthy.
    """
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        pool.map(_busy, [0.01] * processes)
        return sum(pool.map(_busy, [seconds] * processes, chunksize=1))


def _busy(seconds: float) -> float:
    began, used = time.perf_counter(), time.process_time()
    while (passed := time.perf_counter() - began) < seconds:
        pass
    return (time.process_time() - used) / passed


def _loop() -> float:
    used = time.process_time()
    total = 0
    for number in range(1_000_000):
        total += number
    return time.process_time() - used
