"""CPU, load, memory, pressure, disks and network of a node, from /proc and /sys, by node_exporter's
names, so that dashboards and alert rules that are there already fit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from computeflow.collection.agent.node_sources import NodeLook
from computeflow.collection.agent.small_files import number_in, read_small
from computeflow.collection.wire.batches import NodeReading

_TICKS = os.sysconf("SC_CLK_TCK")
_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_MEMORY = ("MemTotal", "MemFree", "MemAvailable", "SwapTotal", "SwapFree", "Dirty", "Writeback")
_SECTOR = 512
_PRESSURE = {
    ("cpu", "some"): "node_pressure_cpu_waiting_seconds_total",
    ("memory", "some"): "node_pressure_memory_waiting_seconds_total",
    ("memory", "full"): "node_pressure_memory_stalled_seconds_total",
    ("io", "some"): "node_pressure_io_waiting_seconds_total",
    ("io", "full"): "node_pressure_io_stalled_seconds_total",
}
_VIRTUAL_DISKS = ("loop", "ram", "zram", "fd", "sr")
_VIRTUAL_NICS = ("lo", "veth", "cali", "docker", "br-", "tunl", "cni", "flannel", "ifb")
_NIC_FILES = {
    "statistics/rx_bytes": "receive_bytes_total",
    "statistics/tx_bytes": "transmit_bytes_total",
    "statistics/rx_errors": "receive_errs_total",
    "statistics/tx_errors": "transmit_errs_total",
    "statistics/rx_dropped": "receive_drop_total",
    "statistics/tx_dropped": "transmit_drop_total",
    "carrier": "carrier",
    "carrier_changes": "carrier_changes_total",
}
_MAX_DEVICES = 256
Figures = Iterator[tuple[str, float, dict[str, str]]]


class HostReadings:
    def __init__(self, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._proc, self._sys = proc, sys

    def look(self, at: int) -> NodeLook:
        parts: dict[str, Callable[[], Figures]] = {
            "cpu": self._cpu,
            "load": self._load,
            "memory": self._memory,
            "pressure": self._pressure,
            "disk": self._disks,
            "network": self._network,
        }
        readings: list[NodeReading] = []
        missing: dict[str, str] = {}
        for name, read in parts.items():
            try:
                found = [
                    NodeReading(at=at, name=what, value=value, labels=labels)
                    for what, value, labels in read()
                ]
            except (OSError, ValueError, IndexError) as error:
                missing[name] = str(getattr(error, "strerror", None) or error)
                continue
            if not found:
                missing[name] = "the kernel does not give it"
            readings += found
        return NodeLook(readings=tuple(readings), missing=missing)

    def _cpu(self) -> Figures:
        """CPU time of all cores together by mode, and their number."""
        cores = 0
        for line in read_small(self._proc / "stat").splitlines():
            if line.startswith("cpu "):
                values = line.split()[1:]
                for mode, value in zip(_MODES, values, strict=False):
                    yield (
                        "node_cpu_seconds_total",
                        int(value) / _TICKS,
                        {"cpu": "all", "mode": mode},
                    )
            cores += line.startswith("cpu") and line[3:4].isdigit()
        yield "computeflow_node_cores", float(cores), {}

    def _load(self) -> Figures:
        words = read_small(self._proc / "loadavg").split()
        yield "node_load1", float(words[0]), {}
        yield "node_load5", float(words[1]), {}

    def _memory(self) -> Figures:
        for line in read_small(self._proc / "meminfo").splitlines():
            name, _, rest = line.partition(":")
            if name in _MEMORY:
                yield f"node_memory_{name}_bytes", float(int(rest.split()[0]) * 1024), {}
        for line in read_small(self._proc / "vmstat").splitlines():
            name, _, value = line.partition(" ")
            if name in ("oom_kill", "pgmajfault"):
                yield f"node_vmstat_{name}", float(value), {}

    def _pressure(self) -> Figures:
        for resource in ("cpu", "memory", "io"):
            for line in read_small(self._proc / "pressure" / resource).splitlines():
                kind, *words = line.split()
                fields = dict(word.split("=", 1) for word in words)
                name = _PRESSURE.get((resource, kind))
                if name is None:
                    continue
                yield name, int(fields["total"]) / 1e6, {}
                labels = {"resource": resource, "kind": kind}
                yield "computeflow_pressure_avg10_percent", float(fields["avg10"]), labels

    def _disks(self) -> Figures:
        for line in read_small(self._proc / "diskstats").splitlines()[:_MAX_DEVICES]:
            words = line.split()
            device = words[2]
            whole = (self._sys / "block" / device).exists()  # a disk, not a part of one
            if device.startswith(_VIRTUAL_DISKS) or not whole:
                continue
            labels = {"device": device}
            yield "node_disk_read_bytes_total", float(int(words[5]) * _SECTOR), labels
            yield "node_disk_written_bytes_total", float(int(words[9]) * _SECTOR), labels
            yield "node_disk_io_time_seconds_total", int(words[12]) / 1000, labels

    def _network(self) -> Figures:
        folder = self._sys / "class" / "net"
        for nic in sorted(os.listdir(folder))[:_MAX_DEVICES]:  # noqa: PTH208
            if nic.startswith(_VIRTUAL_NICS):
                continue
            labels = {"device": nic}
            for file, name in _NIC_FILES.items():
                value = number_in(f"{folder}/{nic}/{file}")
                if value is not None:
                    yield f"node_network_{name}", value, labels
