"""JSON lines of SuperBench's node monitor: one object per sample, GPUs by the number behind a colon.

Times are UTC (superbench/monitor/record.py). Memory is in bytes, as NVML gives it, although its
page says MB; the unit of network rates is doubtful in the same way, so they are not read.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.errors import InputError
from computeflow.files.limits import RECORDED_DEVICES
from computeflow.telemetry.lines import read_lines
from computeflow.telemetry.metrics.exporter_fields import Field
from computeflow.telemetry.metrics.samples import SampledFleet, Slot

_FIELDS = {
    "gpu_usage": Field("utilisation", 0.01),
    "gpu_temperature": Field("temperature"),
    "gpu_power": Field("power"),
    "gpu_power_limit": Field("power_limit"),
    "gpu_mem_used": Field("memory_used"),
    "gpu_mem_total": Field("memory_total"),
    "gpu_corrected_ecc": Field("ecc_corrected"),
    "gpu_uncorrected_ecc": Field("ecc_uncorrected"),
    "gpu_remap_correctable_error": Field("rows_corrected"),
    "gpu_remap_uncorrectable_error": Field("rows_uncorrected"),
}
_MAX_VALUE = 1e300
"""Larger values are no measurements, and may not fit a float."""


def looks_like_monitor(head: bytes) -> bool:
    line = head.split(b"\n", 1)[0]
    return line.lstrip().startswith(b"{") and b'"time"' in line and b'"gpu_usage:' in line


def read_monitor(path: Path, fleet: SampledFleet) -> list[str]:
    bad = rates = 0
    left_out: list[str] = []
    for line in read_lines(path, left_out):
        if not line.strip():
            continue
        try:
            record = codec.from_json(line, str(path), once=True)
            seconds = _seconds(record)
        except (InputError, ValueError, TypeError, KeyError, OverflowError):
            bad += 1
            continue
        for key, value in record.items():
            rates += key.endswith(("_receive_bw", "_transmit_bw"))
            slot = _slot(fleet, key, str(path))
            if slot is not None and isinstance(value, int | float) and abs(value) < _MAX_VALUE:
                slot.add(float(value), seconds)
    if bad:
        left_out.append(f"{path}: {bad:,} lines that are not samples")
    if rates:
        left_out.append(f"{path}: network rates, whose unit is uncertain")
    return left_out


def _seconds(record: Any) -> float:
    when = datetime.strptime(record["time"], "%Y-%m-%d %H:%M:%S")
    return when.replace(tzinfo=UTC).timestamp()


def _slot(fleet: SampledFleet, key: str, source: str) -> Slot | None:
    name, _, gpu = key.partition(":")
    known = _FIELDS.get(name)
    if known is not None and gpu.isdecimal() and len(gpu) < 6 and int(gpu) < RECORDED_DEVICES:
        device = fleet.gpu({"gpu": gpu}, source)
        track = fleet.track(device, known.name)
        if device is None or track is None:
            return None
        slot = Slot(fleet, name, known, track)
        if known.name == "utilisation":
            slot.held = device.track("held:utilisation")
        return slot
    if key == "cpu_usage":
        track = fleet.track(fleet.node("", source), "cpus_busy:")
        return None if track is None else Slot(fleet, name, Field("cpus_busy", 0.01), track)
    return None
