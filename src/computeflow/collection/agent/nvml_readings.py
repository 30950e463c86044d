"""Readings of NVIDIA GPUs by DCGM exporter's names and labels: `NvmlReadings`.

What DCGM exporter has no name for begins with `computeflow_`. A figure that a GPU does not give is in
`missing` with the driver's reason, and is asked for again now and then. GPUs that are cut into MIG
instances are read as whole GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from computeflow.collection.agent.node_sources import NodeLook
from computeflow.collection.agent.nvml_library import FIELDS, NODE, NvmlCalls, NvmlMissingError
from computeflow.collection.wire.batches import NodeReading, NodeSignal
from computeflow.telemetry.kernel_logs.messages import pci_address
from computeflow.telemetry.metrics.exporter_fields import NOT_SLOWING, SETTINGS, reasons_of

_MIB = 2.0**20
_SM, _MEMORY = 1, 2
_PLAIN = (
    ("nvmlDeviceGetPowerUsage", (), "DCGM_FI_DEV_POWER_USAGE", 1e-3),
    ("nvmlDeviceGetTotalEnergyConsumption", (), "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1.0),
    ("nvmlDeviceGetEnforcedPowerLimit", (), "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", 1e-3),
    ("nvmlDeviceGetClockInfo", (_SM,), "DCGM_FI_DEV_SM_CLOCK", 1.0),
    ("nvmlDeviceGetClockInfo", (_MEMORY,), "DCGM_FI_DEV_MEM_CLOCK", 1.0),
    ("nvmlDeviceGetMaxClockInfo", (_SM,), "DCGM_FI_DEV_MAX_SM_CLOCK", 1.0),
    ("nvmlDeviceGetTemperature", (0,), "DCGM_FI_DEV_GPU_TEMP", 1.0),
    ("nvmlDeviceGetCurrPcieLinkGeneration", (), "DCGM_FI_DEV_PCIE_LINK_GEN", 1.0),
    ("nvmlDeviceGetCurrPcieLinkWidth", (), "DCGM_FI_DEV_PCIE_LINK_WIDTH", 1.0),
)
"""Function, arguments, name, and the factor to the unit that DCGM uses."""
_FIELDS = {
    3: ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 1.0),
    4: ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1.0),
    5: ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", 1.0),
    6: ("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", 1.0),
    29: ("DCGM_FI_DEV_RETIRED_SBE", 1.0),
    30: ("DCGM_FI_DEV_RETIRED_DBE", 1.0),
    31: ("DCGM_FI_DEV_RETIRED_PENDING", 1.0),
    38: ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 1.0),
    45: ("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", 1.0),
    52: ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 1.0),
    59: ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 1.0),
    74: ("DCGM_FI_DEV_POWER_VIOLATION", 1e-3),
    75: ("DCGM_FI_DEV_THERMAL_VIOLATION", 1e-3),
    82: ("DCGM_FI_DEV_MEMORY_TEMP", 1.0),
    94: ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 1.0),
    138: ("computeflow_nvlink_transmitted_bytes_total", 1024.0),
    139: ("computeflow_nvlink_received_bytes_total", 1024.0),
    197: ("computeflow_pcie_transmitted_bytes_total", 1.0),
    198: ("computeflow_pcie_received_bytes_total", 1.0),
}
"""Numbers of NVML's fields; violations are nanoseconds there and microseconds in DCGM."""
FIELD_NUMBERS = tuple(_FIELDS)
_REMAPPED = (
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    "computeflow_gpu_row_remap_pending", "DCGM_FI_DEV_ROW_REMAP_FAILURE",
)  # fmt: skip
_GROWTH = {
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "uncorrectable memory error",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "memory row remapped",
    "DCGM_FI_DEV_RETIRED_DBE": "memory page retired",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "row remapping failed",
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": "nvlink crc errors",
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": "nvlink replays",
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": "nvlink recovery",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "pcie replays",
}
"""Counters that say something when they grow."""
_MAX_PROCESSES = 64
_ASK_AGAIN = 60
"""Looks after which a figure that was missing is asked for again."""
Labels = dict[str, str]


class NvmlReadings:
    """The source of readings of all GPUs of the driver, or of a recording of it."""

    def __init__(self, calls: NvmlCalls, node: str) -> None:
        self._calls, self._node = calls, node
        self._labels: dict[int, Labels] = {}
        self.uuids: dict[str, str] = {}
        """UUIDs by PCI address, as the kernel's messages name GPUs."""
        self._looks = 0
        self._absent: dict[tuple[int, str], str] = {}
        self._before: dict[int, dict[str, float]] = {}
        self._slowed: dict[int, frozenset[str]] = {}

    def look(self, at: int) -> NodeLook:
        if self._looks % _ASK_AGAIN == 0:
            self._absent.clear()
        self._looks += 1
        try:
            count = int(self._calls.ask(NODE, "nvmlDeviceGetCount"))
        except NvmlMissingError as missing:
            return NodeLook(missing={"nvml": str(missing)})
        readings: list[NodeReading] = []
        signals: list[NodeSignal] = []
        missing_gpus: dict[str, str] = {}
        for gpu in range(count):
            try:
                labels = self._labels_of(gpu)
            except NvmlMissingError as missing:
                missing_gpus[f"gpu {gpu}"] = str(missing)
                continue
            figures = dict(self._figures(gpu))
            readings += [
                NodeReading(at=at, name=name, value=value, labels=labels)
                for name, value in figures.items()
            ]
            readings += self._reasons(gpu, at, labels, signals)
            readings += self._processes(gpu, at, labels)
            signals += self._grown(gpu, at, figures)
        return NodeLook(
            readings=tuple(readings),
            signals=tuple(signals),
            missing=missing_gpus | self._missing_figures(count),
        )

    def _missing_figures(self, count: int) -> dict[str, str]:
        """What is missing by name, with the GPUs that lack it unless all do."""
        table: dict[str, str] = {}
        for (_, name), reason in self._absent.items():
            lacking = sorted(gpu for gpu, other in self._absent if other == name)
            where = "" if len(lacking) == count else f" (gpu {', '.join(map(str, lacking))})"
            table[name] = f"{reason}{where}"
        return table

    def _labels_of(self, gpu: int) -> Labels:
        if gpu not in self._labels:
            uuid = str(self._calls.ask(gpu, "nvmlDeviceGetUUID"))
            bus = self._calls.ask(gpu, "nvmlDeviceGetPciInfo")
            address = str(bus.get("busId", "")) if isinstance(bus, dict) else ""
            self.uuids[pci_address(address)] = uuid
            self._labels[gpu] = {
                "gpu": str(gpu),
                "UUID": uuid,
                "modelName": str(self._calls.ask(gpu, "nvmlDeviceGetName")),
                "Hostname": self._node,
                "pci_bus_id": address,
            }
        return self._labels[gpu]

    def _ask(self, gpu: int, name: str, function: str, *arguments: int) -> Any:
        """The answer; None where it is missing, and why is kept under `name`."""
        if (gpu, name) in self._absent:
            return None
        try:
            return self._calls.ask(gpu, function, *arguments)
        except NvmlMissingError as missing:
            self._absent[gpu, name] = str(missing)
            return None

    def _figures(self, gpu: int) -> Iterator[tuple[str, float]]:
        for function, arguments, name, scale in _PLAIN:
            value = self._ask(gpu, name, function, *arguments)
            if value is not None:
                yield name, float(value) * scale
        yield from self._utilisation(gpu)
        fields = self._ask(gpu, "fields", FIELDS, *_FIELDS)
        for number, (name, scale) in _FIELDS.items() if isinstance(fields, dict) else ():
            value = fields.get(str(number))
            if value is not None:
                self._absent.pop((gpu, name), None)
                yield name, float(value) * scale
            else:
                self._absent[gpu, name] = "the driver does not give this field"
        rows = self._ask(gpu, _REMAPPED[0], "nvmlDeviceGetRemappedRows")
        if isinstance(rows, list):
            yield from ((name, float(value)) for name, value in zip(_REMAPPED, rows, strict=False))

    def _utilisation(self, gpu: int) -> Iterator[tuple[str, float]]:
        name = "DCGM_FI_DEV_GPU_UTIL"
        rates = self._ask(gpu, name, "nvmlDeviceGetUtilizationRates")
        if isinstance(rates, dict):
            yield name, float(rates["gpu"])
            yield "DCGM_FI_DEV_MEM_COPY_UTIL", float(rates["memory"])
        memory = self._ask(gpu, "DCGM_FI_DEV_FB_USED", "nvmlDeviceGetMemoryInfo")
        if isinstance(memory, dict):
            for part in ("used", "free", "total"):
                yield f"DCGM_FI_DEV_FB_{part.upper()}", float(memory[part]) / _MIB

    def _reasons(
        self, gpu: int, at: int, labels: Labels, signals: list[NodeSignal]
    ) -> list[NodeReading]:
        """Why clocks are low: the mask, each reason, and a signal where a fault of the node begins."""
        name = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
        mask = self._ask(gpu, name, "nvmlDeviceGetCurrentClocksEventReasons")
        if mask is None:
            mask = self._ask(gpu, f"{name} ", "nvmlDeviceGetCurrentClocksThrottleReasons")
        if mask is None:
            return []
        self._absent.pop((gpu, name), None)
        reasons = [reason for reason in reasons_of(mask) if reason not in NOT_SLOWING]
        slowed = frozenset(reason for reason in reasons if reason not in SETTINGS)
        for reason in sorted(slowed - self._slowed.get(gpu, frozenset())):
            signals.append(
                NodeSignal(
                    at=at, what="clock throttle", detail=f"gpu {gpu}: {reason}", gpu=labels["UUID"]
                )
            )
        self._slowed[gpu] = slowed
        return [
            NodeReading(at=at, name=name, value=float(mask), labels=labels),
            *(
                NodeReading(
                    at=at,
                    name="computeflow_gpu_throttled",
                    value=1.0,
                    labels=labels | {"reason": reason},
                )
                for reason in reasons
            ),
        ]

    def _processes(self, gpu: int, at: int, labels: Labels) -> list[NodeReading]:
        name = "computeflow_gpu_processes"
        found = self._ask(gpu, name, "nvmlDeviceGetComputeRunningProcesses")
        if not isinstance(found, list):
            return []
        return [
            NodeReading(at=at, name=name, value=float(len(found)), labels=labels),
            *(
                NodeReading(
                    at=at,
                    name="computeflow_gpu_process_memory_bytes",
                    value=float(process.get("usedGpuMemory") or 0),
                    labels=labels | {"pid": str(process.get("pid", ""))},
                )
                for process in found[:_MAX_PROCESSES]
            ),
        ]

    def _grown(self, gpu: int, at: int, figures: dict[str, float]) -> Iterator[NodeSignal]:
        before = self._before.get(gpu)
        self._before[gpu] = figures
        for name, what in _GROWTH.items() if before is not None else ():
            more = figures.get(name, 0.0) - (before or {}).get(name, figures.get(name, 0.0))
            if more > 0:
                yield NodeSignal(
                    at=at,
                    what=what,
                    detail=f"gpu {gpu}: {more:,.0f} more",
                    gpu=self._labels[gpu]["UUID"],
                )
