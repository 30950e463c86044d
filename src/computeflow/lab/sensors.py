"""Power, clocks and temperature of the device, sampled beside the work. Absence is a value.

NVML is the only source so far. Mean power comes from the driver's energy counter where it has one
(it integrates for us), else from the samples.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computeflow.collection.agent.nvml_library import NvmlMissingError, nvml_module

_THROTTLES = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Sensor readings over an interval of work; None where nothing could be read."""

    seconds: float
    samples: int = 0
    mean_watts: float | None = None
    max_watts: float | None = None
    mean_sm_hertz: float | None = None
    min_sm_hertz: float | None = None
    max_temperature_celsius: float | None = None
    throttled: dict[str, float] | None = None
    """Share of the samples in which the driver gave each reason."""
    unavailable: str = ""
    """Why there are no readings."""


class Sensors:
    """Sampler of one device: `with Sensors(index) as sensors: work()`, then `sensors.readings`."""

    def __init__(self, index: int = 0, interval_seconds: float = 0.02) -> None:
        self.interval_seconds = interval_seconds
        self._stop = threading.Event()
        self._samples: list[tuple[float, float, float, int]] = []
        self._nvml, self._handle, self._missing = _open(index)
        self.readings = Readings(seconds=0.0, unavailable=self._missing or "not finished")

    def __enter__(self) -> Sensors:
        self._start = time.monotonic()
        self._joules = self._energy()
        if self._handle is not None:
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.monotonic() - self._start
        if self._handle is None:
            self.readings = Readings(seconds=seconds, unavailable=self._missing)
            return
        self._stop.set()
        self._thread.join()
        self.readings = self._summarise(seconds)

    def _energy(self) -> float | None:
        if self._handle is None:
            return None
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1000
        except self._nvml.NVMLError:
            return None

    def _sample(self) -> None:
        nvml, handle = self._nvml, self._handle
        while not self._stop.wait(self.interval_seconds):
            try:
                self._samples.append(
                    (
                        nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                        nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
                        float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
                        nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
                    )
                )
            except nvml.NVMLError as error:
                self._missing = str(error)
                return

    def _mean_watts(self, seconds: float, sampled: float) -> float:
        """Mean power by the device's energy counter over more than half a second, else by the
        samples.
        """
        before, after = self._joules, self._energy()
        if before is None or after is None or seconds <= 0.5:
            return sampled
        return (after - before) / seconds

    def _summarise(self, seconds: float) -> Readings:
        if not self._samples:
            return Readings(seconds=seconds, unavailable=self._missing or "too short to sample")
        watts, clocks, heat, reasons = zip(*self._samples, strict=True)
        return Readings(
            seconds=seconds,
            samples=len(watts),
            mean_watts=self._mean_watts(seconds, sum(watts) / len(watts)),
            max_watts=max(watts),
            mean_sm_hertz=sum(clocks) / len(clocks),
            min_sm_hertz=min(clocks),
            max_temperature_celsius=max(heat),
            throttled={
                name: sum(bool(seen & bit) for seen in reasons) / len(reasons)
                for bit, name in _THROTTLES.items()
                if any(seen & bit for seen in reasons)
            },
        )


def _open(index: int) -> tuple[Any, Any, str]:
    """The NVML module and a device handle, or why not."""
    try:
        nvml = nvml_module()
    except NvmlMissingError as missing:
        return None, None, str(missing)
    try:
        nvml.nvmlInit()
        return nvml, nvml.nvmlDeviceGetHandleByIndex(index), ""
    except nvml.NVMLError as error:
        return nvml, None, f"an NVIDIA driver ({error})"


def describe_device(index: int = 0) -> dict[str, Any]:
    """Name, driver, memory, power limit and clocks of a device, for provenance; {} without NVML."""
    nvml, handle, missing = _open(index)
    if handle is None:
        return {"unavailable": missing}
    bus = nvml.nvmlDeviceGetPciInfo(handle).busId
    return {
        "name": nvml.nvmlDeviceGetName(handle),
        "numa_node": numa_node(bus if isinstance(bus, str) else bus.decode()),
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "memory_bytes": int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        "power_limit_watts": nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000,
        "max_sm_hertz": nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
        "max_memory_hertz": nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6,
    }


def numa_node(bus: str, root: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """The NUMA node of a device; NVML writes 00000000:3B:00.0, the kernel 0000:3b:00.0."""
    try:
        node = int((root / bus.lower()[-12:] / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
