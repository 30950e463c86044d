"""Names and units of exporters' metrics, values that mean "no value", reasons for low clocks.

NVIDIA: DCGM's field names as dcgm-exporter writes them (docs.nvidia.com/datacenter/dcgm, Field
Identifiers, Field Constants, Enums and Macros; etc/*.csv of NVIDIA/dcgm-exporter), also by their
names of version 1. AMD: docs/configuration/metricslist.md of ROCm/device-metrics-exporter, with
and without the prefix `amd_`. Nodes: prometheus/node_exporter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Field:
    """Our name for what a metric measures, and the factor for its values."""

    name: str
    scale: float = 1.0
    amd: bool = False
    where: tuple[str, str] | None = None
    """A label and the value it must have."""


MIB = 2.0**20
ACTIVITY = ("utilisation", "engine_active", "sm_active")
"""Signals that show whether anything ran; the first one present is used."""

_NVIDIA = {
    "DCGM_FI_DEV_GPU_UTIL": Field("utilisation", 0.01),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": Field("engine_active"),
    "DCGM_FI_PROF_SM_ACTIVE": Field("sm_active"),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": Field("tensor_active"),
    "DCGM_FI_PROF_DRAM_ACTIVE": Field("dram_active"),
    "DCGM_FI_DEV_POWER_USAGE": Field("power"),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": Field("energy", 1e-3),
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": Field("power_limit"),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": Field("power_limit"),
    "DCGM_FI_DEV_SM_CLOCK": Field("clock", 1e6),
    "DCGM_FI_DEV_MAX_SM_CLOCK": Field("clock_max", 1e6),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": Field("reasons"),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": Field("reasons"),
    "DCGM_FI_DEV_POWER_VIOLATION": Field("grows:power violation"),
    "DCGM_FI_DEV_THERMAL_VIOLATION": Field("grows:thermal violation"),
    "DCGM_FI_DEV_SYNC_BOOST_VIOLATION": Field("grows:sync boost violation"),
    "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION": Field("grows:board limit violation"),
    "DCGM_FI_DEV_RELIABILITY_VIOLATION": Field("grows:reliability violation"),
    "DCGM_FI_DEV_GPU_TEMP": Field("temperature"),
    "DCGM_FI_DEV_MEMORY_TEMP": Field("memory_temperature"),
    "DCGM_FI_DEV_FB_USED": Field("memory_used", MIB),
    "DCGM_FI_DEV_FB_FREE": Field("memory_free", MIB),
    "DCGM_FI_DEV_FB_TOTAL": Field("memory_total", MIB),
    "DCGM_FI_DEV_XID_ERRORS": Field("xid"),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": Field("ecc_corrected"),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": Field("ecc_uncorrected"),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": Field("rows_corrected"),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": Field("rows_uncorrected"),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": Field("remap_failure"),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": Field("link_sent"),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": Field("link_received"),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": Field("link_errors:crc flit"),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": Field("link_errors:crc data"),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": Field("link_errors:replay"),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": Field("link_errors:recovery"),
    "DCGM_FI_PROF_PCIE_TX_BYTES": Field("pcie_sent"),
    "DCGM_FI_PROF_PCIE_RX_BYTES": Field("pcie_received"),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": Field("pcie_replays"),
    "dcgm_gpu_utilization": Field("utilisation", 0.01),
    "dcgm_power_usage": Field("power"),
    "dcgm_total_energy_consumption": Field("energy", 1e-3),
    "dcgm_sm_clock": Field("clock", 1e6),
    "dcgm_gpu_temp": Field("temperature"),
    "dcgm_memory_temp": Field("memory_temperature"),
    "dcgm_fb_used": Field("memory_used", MIB),
    "dcgm_fb_free": Field("memory_free", MIB),
    "dcgm_xid_errors": Field("xid"),
    "dcgm_pcie_replay_counter": Field("pcie_replays"),
}
_SYSTEM_CLOCK = ("clock_type", "system")
_AMD = {
    "gpu_gfx_activity": Field("utilisation", 0.01, amd=True),
    "gpu_prof_tensor_active_percent": Field("tensor_active", 0.01, amd=True),
    "gpu_package_power": Field("power", amd=True),
    "gpu_average_package_power": Field("power", amd=True),
    "gpu_energy_consumed": Field("energy", 1e-6, amd=True),
    "gpu_clock": Field("clock", 1e6, amd=True, where=_SYSTEM_CLOCK),
    "gpu_max_clock": Field("clock_max", 1e6, amd=True, where=_SYSTEM_CLOCK),
    "gpu_junction_temperature": Field("temperature", amd=True),
    "gpu_edge_temperature": Field("temperature", amd=True),
    "gpu_memory_temperature": Field("memory_temperature", amd=True),
    "gpu_used_vram": Field("memory_used", 1e6, amd=True),
    "gpu_total_vram": Field("memory_total", 1e6, amd=True),
    "gpu_ecc_correct_total": Field("ecc_corrected", amd=True),
    "gpu_ecc_uncorrect_total": Field("ecc_uncorrected", amd=True),
    "gpu_afid_errors": Field("afid", amd=True),
    "pcie_replay_count": Field("pcie_replays", amd=True),
    "gpu_violation_ppt_residency_percentage": Field("above:power violation", amd=True),
    "gpu_violation_socket_thermal_residency_percentage": Field("above:thermal violation", amd=True),
    "gpu_violation_vr_thermal_residency_percentage": Field(
        "above:regulator thermal violation", amd=True
    ),
    "gpu_violation_hbm_thermal_residency_percentage": Field(
        "above:memory thermal violation", amd=True
    ),
    "gpu_violation_processor_hot_residency_percentage": Field("above:processor hot", amd=True),
}
GPU_FIELDS = _NVIDIA | _AMD | {f"amd_{name}": field for name, field in _AMD.items()}

NODE_FIELDS = {
    "node_cpu_seconds_total": Field("cpu"),
    "node_memory_MemTotal_bytes": Field("memory_total"),
    "node_memory_MemAvailable_bytes": Field("memory_available"),
    "node_network_receive_bytes_total": Field("network_received"),
    "node_network_transmit_bytes_total": Field("network_sent"),
    "node_infiniband_port_data_received_bytes_total": Field("infiniband_received"),
    "node_infiniband_port_data_transmitted_bytes_total": Field("infiniband_sent"),
}

_REASONS = {
    0x1: "idle",
    0x2: "clocks setting",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks setting",
}
"""Bits of DCGM_FI_DEV_CLOCKS_EVENT_REASONS (Field Constants), which are NVML's."""
NOT_SLOWING = {"idle"}
BY_POWER = {"power cap", "power violation"}
"""Reasons that a busy, healthy GPU shows too, when its work reaches the power limit."""
SETTINGS = BY_POWER | {"clocks setting", "sync boost", "display clocks setting"}

_INT32 = (float(0x7FFFFFF0), float(0x7FFFFFFF))
_FP64 = (2.0**47, 2.0**47 + 15)
_INT64 = float(0x7FFFFFFFFFFFF000)
"""DCGM's blanks begin at 0x7ffffffffffffff0, which a double rounds to 2**63; AMD's is 2**64 - 1."""
_AMD_BLANKS = {float(0xFFFF), float(0xFFFFFFFF)}
"""All bits set, by the width of the driver's own value (ROCm/device-metrics-exporter issue 662)."""


def is_blank(value: float, *, amd: bool = False) -> bool:
    """Whether a number means "not found", "not supported" or "not permitted"."""
    return (
        not math.isfinite(value)
        or value >= _INT64
        or _INT32[0] <= value <= _INT32[1]
        or _FP64[0] <= value <= _FP64[1]
        or (amd and value in _AMD_BLANKS)
    )


def reasons_of(mask: float) -> tuple[str, ...]:
    bits = int(mask)
    known = [name for bit, name in _REASONS.items() if bits & bit]
    rest = bits & ~sum(_REASONS)
    return (*known, f"reason {rest:#x}") if rest else tuple(known)


NEEDED = {
    "utilisation": "DCGM_FI_DEV_GPU_UTIL (AMD: gpu_gfx_activity)",
    "sm_active": "DCGM_FI_PROF_SM_ACTIVE (off in dcgm-exporter's default-counters.csv)",
    "tensor_active": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE (AMD: gpu_prof_tensor_active_percent)",
    "power": "DCGM_FI_DEV_POWER_USAGE (AMD: gpu_package_power)",
    "clock": "DCGM_FI_DEV_SM_CLOCK (AMD: gpu_clock)",
    "reasons": "DCGM_FI_DEV_CLOCKS_EVENT_REASONS (field 112, in none of dcgm-exporter's own lists "
    "of counters; AMD: gpu_violation_*_percentage)",
    "memory_used": "DCGM_FI_DEV_FB_USED (AMD: gpu_used_vram)",
}
"""The metric to turn on in the exporter for each signal."""
