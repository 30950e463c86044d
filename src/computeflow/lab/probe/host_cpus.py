"""Measurement of the host: how many CPUs it states, how much CPU time it delivers, and how much
others take.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import time
from dataclasses import dataclass
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuShare:
    """CPU-seconds per second of wall clock, while every CPU was kept busy."""

    delivered: float
    """CPU time of our busy processes."""
    others: float
    """CPU time of other work on the machine meanwhile."""
    stolen: float
    """CPU time withheld by the hypervisor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedHost:
    name: str
    cpus: int
    """CPUs this process may run on."""
    quota_cpus: float | None
    """The limit that the control group states, if it states one."""
    share: CpuShare
    """The best of three tries: the one with least unaccounted CPU time."""
    loop_seconds: float
    """CPU time of a fixed Python loop: the speed of one core."""
    memory_bytes: int
    numa_nodes: int
    affinity: tuple[int, ...]


def examine_host(seconds: float = 0.5) -> ProbedHost:
    affinity = tuple(sorted(os.sched_getaffinity(0)))
    tries = [_cpu_share(len(affinity), seconds) for _ in range(3)]
    return ProbedHost(
        name=platform.node(),
        cpus=len(affinity),
        quota_cpus=cgroup_quota(),
        share=max(tries, key=lambda share: share.delivered + share.others),
        loop_seconds=min(_loop() for _ in range(5)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        numa_nodes=max(1, len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))),
        affinity=affinity,
    )


def cgroup_quota(
    membership: Path = Path("/proc/self/cgroup"), root: Path = _CGROUPS
) -> float | None:
    """CPUs that the control groups of this process allow (v2 or v1); None without a limit."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            limits += [_limit(folder / "cpu.max") for folder in _upwards(root, path)]
        elif "cpu" in controllers.split(","):
            limits += map(_limit_v1, _upwards(root / controllers, path))
            limits += map(_limit_v1, _upwards(root / "cpu", path))
    return min((limit for limit in limits if limit is not None), default=None)


def _upwards(root: Path, path: str) -> list[Path]:
    folder = root / path.strip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]


def _limit(file: Path) -> float | None:
    try:
        quota, period = file.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _limit_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None


def _cpu_share(processes: int, seconds: float) -> CpuShare:
    """Keep every CPU busy for a moment and measure who got the time.

    A quota or a stopped core shows as time that nobody got, a busy neighbour as others' time.
    """
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        pool.map(_busy, [0.01] * processes, chunksize=1)
        before, began = _ticks(), time.perf_counter()
        delivered = sum(pool.map(_busy, [seconds] * processes, chunksize=1))
        after, passed = _ticks(), time.perf_counter() - began
    scale = 1 / (os.sysconf("SC_CLK_TCK") * passed)
    busy, stolen = ((after[i] - before[i]) * scale for i in (0, 1))
    return CpuShare(delivered=delivered, others=max(busy - delivered, 0.0), stolen=stolen)


def _ticks() -> tuple[int, int]:
    """Busy and stolen clock ticks of all CPUs since boot."""
    try:
        fields = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return 0, 0
    user, nice, system, _idle, _wait, irq, softirq, stolen = fields
    return user + nice + system + irq + softirq, stolen


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
