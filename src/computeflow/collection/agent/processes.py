"""Whether a rank's process is there, and what it had of the CPU: `ProcessWatch`, `RankProcesses`.

A rank on a node with a CPU quota is slow because its control group is throttled; that, and how long it
stood ready to run without a core, is read here for the processes that train.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from computeflow.collection.agent.node_sources import NodeLook
from computeflow.collection.agent.small_files import read_small
from computeflow.collection.wire.batches import NodeReading, NodeSignal

_SLACK_SECONDS = 5.0
"""By how much a file's time may lie before the start of the process that writes it."""
_TICKS = os.sysconf("SC_CLK_TCK")
_LOOK_AGAIN = 60_000_000
"""Microseconds for which the control groups of a process are taken to be the same."""
_THROTTLED = 0.1
"""Share of the time in which a quota holds a process back, from which on it is said."""


class ProcessWatch:
    """Watches one process by its number, and is not fooled by a number that is used again."""

    def __init__(self, pid: int, changed: float, proc: Path = Path("/proc")) -> None:
        """`changed`: when its file last changed, which is after the process began."""
        self.pid = pid
        self._proc = proc
        self._handle: int | None = None
        self._poll = select.poll()
        self._seen = False
        born, boot = _born(proc, pid), _boot_seconds(proc)
        if (
            born is not None
            and boot is not None
            and boot + born / _TICKS <= changed + _SLACK_SECONDS
        ):
            self._seen = True
            with contextlib.suppress(OSError, AttributeError):  # Linux before 5.3
                self._handle = os.pidfd_open(pid)
                self._poll.register(self._handle, select.POLLIN)
            self._born = born

    def alive(self) -> bool | None:
        """None where the process was never seen: it may be in a container with its own numbers."""
        if not self._seen:
            return None
        if self._handle is not None:
            return not self._poll.poll(0)
        return _born(self._proc, self.pid) == self._born

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
        self._handle = None


def _born(proc: Path, pid: int) -> int | None:
    """Clock ticks from boot to the start of a process; None without it, or where it is a zombie."""
    try:
        fields = read_small(f"{proc}/{pid}/stat").rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def _boot_seconds(proc: Path) -> float | None:
    try:
        for line in read_small(proc / "stat").splitlines():
            if line.startswith("btime "):
                return float(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProcess:
    run: str
    rank: int
    pid: int


@dataclass(slots=True)
class _Quota:
    """What a control group had been throttled, when it was last looked at."""

    at: int
    seconds: float
    said: bool = False


class RankProcesses:
    """The source of what the processes that train had of the CPU."""

    def __init__(
        self,
        ranks: Callable[[], Iterable[TrainingProcess]],
        *,
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        self._ranks, self._proc, self._cgroups = ranks, proc, cgroups
        self._before: dict[tuple[str, int], _Quota] = {}
        self._groups: dict[int, tuple[Path, ...]] = {}
        self._looked = 0

    def _quota(self, pid: int, at: int) -> dict[str, float]:
        """The figures of a process's groups, which are looked for anew once a minute."""
        if at - self._looked >= _LOOK_AGAIN or at < self._looked:
            self._groups, self._looked = {}, at
        if pid not in self._groups:
            self._groups[pid] = quota_groups(self._proc, self._cgroups, pid)
        return quota_figures(self._groups[pid])

    def look(self, at: int) -> NodeLook:
        readings: list[NodeReading] = []
        signals: list[NodeSignal] = []
        missing: dict[str, str] = {}
        seen: set[tuple[str, int]] = set()
        for rank in self._ranks():
            labels = {"run": rank.run, "rank": str(rank.rank)}
            figures = _cpu_figures(self._proc, rank.pid)
            quota = self._quota(rank.pid, at)
            if not quota:
                missing["cpu.stat"] = "no control group of a rank's process can be read"
            figures |= quota
            readings += [
                NodeReading(at=at, name=f"computeflow_{name}", value=value, labels=labels)
                for name, value in figures.items()
            ]
            key = (rank.run, rank.pid)
            seen.add(key)
            said = self._throttled(key, at, quota.get("cgroup_throttled_seconds_total"))
            if said is not None:
                signals.append(_throttle_signal(at, rank, said, quota))
        self._before = {key: self._before[key] for key in seen if key in self._before}
        return NodeLook(readings=tuple(readings), signals=tuple(signals), missing=missing)

    def _throttled(self, key: tuple[str, int], at: int, seconds: float | None) -> float | None:
        """The share of the time since the last look that was throttled, when that begins."""
        before = self._before.get(key)
        if seconds is None:
            return None
        if before is None or at <= before.at:
            self._before[key] = _Quota(at, seconds)
            return None
        share = (seconds - before.seconds) / ((at - before.at) / 1e6)
        begins = share >= _THROTTLED and not before.said
        self._before[key] = _Quota(at, seconds, share >= _THROTTLED)
        return share if begins else None


def _throttle_signal(
    at: int, rank: TrainingProcess, share: float, quota: dict[str, float]
) -> NodeSignal:
    cores = quota.get("cgroup_quota_cores")
    limit = f"; its control group has {cores:g} cores" if cores else ""
    return NodeSignal(
        at=at,
        what="cpu quota",
        detail=f"rank {rank.rank} of {rank.run}: held back {share:.2f} s each second{limit}",
    )


def _cpu_figures(proc: Path, pid: int) -> dict[str, float]:
    """CPU time of a process, and how long its main thread was ready and had no core."""
    figures = {}
    try:
        fields = read_small(f"{proc}/{pid}/stat").rpartition(")")[2].split()
        figures["rank_cpu_seconds_total"] = (int(fields[11]) + int(fields[12])) / _TICKS
        figures["rank_resident_bytes"] = float(int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))
        waited = read_small(f"{proc}/{pid}/schedstat").split()
        figures["rank_run_delay_seconds_total"] = int(waited[1]) / 1e9
    except (OSError, ValueError, IndexError):
        pass
    return figures


def quota_groups(proc: Path, cgroups: Path, pid: int) -> tuple[Path, ...]:
    """Control groups of a process, from its own up, that count what they hold back."""
    return tuple(
        folder
        for folder in _groups(proc, cgroups, pid)
        if "nr_throttled" in _table(folder / "cpu.stat")
    )


def quota_figures(groups: Sequence[Path]) -> dict[str, float]:
    """Throttling by the quotas of these groups.

    Each level counts by itself; a process is held back by all of them, so they are added up.
    """
    periods = throttled = seconds = 0.0
    cores: list[float] = []
    for folder in groups:
        stat = _table(folder / "cpu.stat")
        periods += stat.get("nr_periods", 0.0)
        throttled += stat.get("nr_throttled", 0.0)
        seconds += stat.get("throttled_usec", 0.0) / 1e6 + stat.get("throttled_time", 0.0) / 1e9
        cores += _quota_cores(folder)
    if not groups:
        return {}
    figures = {
        "cgroup_periods_total": periods,
        "cgroup_throttled_periods_total": throttled,
        "cgroup_throttled_seconds_total": seconds,
    }
    return figures | ({"cgroup_quota_cores": min(cores)} if cores else {})


def _groups(proc: Path, cgroups: Path, pid: int) -> Iterable[Path]:
    """Folders of the CPU controller, from the process's own up to the root; version 2, else 1."""
    try:
        lines = read_small(f"{proc}/{pid}/cgroup").splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            base = cgroups if (cgroups / "cgroup.controllers").exists() else cgroups / "unified"
        elif "cpu" in controllers.split(","):
            base = next(
                (cgroups / name for name in (controllers, "cpu") if (cgroups / name).is_dir()),
                cgroups / "cpu",
            )
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..", ".")]
        for depth in range(len(parts), -1, -1):
            yield base.joinpath(*parts[:depth])


def _table(path: Path) -> dict[str, float]:
    figures = {}
    try:
        for line in read_small(path).splitlines():
            name, _, value = line.partition(" ")
            figures[name] = float(value)
    except (OSError, ValueError):
        pass
    return figures


def _quota_cores(folder: Path) -> list[float]:
    try:
        quota, period = read_small(folder / "cpu.max").split()
    except (OSError, ValueError):
        try:
            quota = read_small(folder / "cpu.cfs_quota_us").strip()
            period = read_small(folder / "cpu.cfs_period_us").strip()
        except OSError:
            return []
    try:
        return [int(quota) / int(period)] if int(quota) > 0 else []
    except (ValueError, ZeroDivisionError):
        return []  # "max"
