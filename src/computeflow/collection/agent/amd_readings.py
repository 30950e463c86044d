"""Readings of AMD GPUs by the names of AMD's device metrics exporter: `AmdReadings`.

Written after the documentation of amdsmi 7.0; no AMD GPU was at hand to try it on, and every call is
guarded: what fails is missing, with its reason.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from computeflow.collection.agent.node_sources import NodeLook
from computeflow.collection.wire.batches import NodeReading

_KFD = Path("/dev/kfd")
_SYSTEM_CLOCKS = ("gpu_clock", "gpu_max_clock")
_NO_VALUE = ("N/A", None, 0xFFFF, 0xFFFFFFFF, 2**64 - 1)
Figures = Iterator[tuple[str, Any, float]]


class AmdReadings:
    def __init__(self, node: str) -> None:
        self._node = node
        self._smi, self._gpus, self._reason = _open()
        self._labels: dict[int, dict[str, str]] = {}

    def look(self, at: int) -> NodeLook:
        if self._reason:
            return NodeLook(missing={"amdsmi": self._reason})
        readings: list[NodeReading] = []
        missing: dict[str, str] = {}
        for number, handle in enumerate(self._gpus):
            labels = self._labels_of(number, handle)
            for part in (_activity, _power, _clocks, _heat, _memory, _errors):
                try:
                    for name, value, scale in part(self._smi, handle):
                        if value not in _NO_VALUE:
                            clock = {"clock_type": "system"} if name in _SYSTEM_CLOCKS else {}
                            readings.append(
                                NodeReading(
                                    at=at,
                                    name=name,
                                    value=float(value) * scale,
                                    labels=labels | clock,
                                )
                            )
                except Exception as error:  # amdsmi raises its own, KeyError and TypeError
                    missing[f"gpu {number}: {part.__name__.strip('_')}"] = str(error)[:200]
        return NodeLook(readings=tuple(readings), missing=missing)

    def _labels_of(self, number: int, handle: Any) -> dict[str, str]:
        if number not in self._labels:
            labels = {"gpu_id": str(number), "hostname": self._node}
            try:
                labels["gpu_uuid"] = str(self._smi.amdsmi_get_gpu_device_uuid(handle))
                board = self._smi.amdsmi_get_gpu_asic_info(handle)
                labels["card_model"] = str(board.get("market_name", ""))
            except Exception:
                labels.setdefault("gpu_uuid", "")
            self._labels[number] = labels
        return self._labels[number]


def _open() -> tuple[Any, list[Any], str]:
    """The library and its GPUs, or why not; its import prints and raises without the driver's
    library, so it is tried where the kernel has an AMD GPU only.
    """
    if not _KFD.exists():
        return None, [], f"no AMD GPU ({_KFD} is not there)"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            import amdsmi
    except ImportError:
        return None, [], "amdsmi: pip install amdsmi"
    except Exception as error:
        return None, [], f"an AMD driver ({str(error)[:200]})"
    try:
        amdsmi.amdsmi_init()
        return amdsmi, list(amdsmi.amdsmi_get_processor_handles()), ""
    except Exception as error:
        return None, [], f"an AMD driver ({str(error)[:200]})"


def _activity(smi: Any, handle: Any) -> Figures:
    yield "gpu_gfx_activity", smi.amdsmi_get_gpu_activity(handle)["gfx_activity"], 1.0


def _power(smi: Any, handle: Any) -> Figures:
    power = smi.amdsmi_get_power_info(handle)
    socket = power.get("current_socket_power")
    value = power.get("average_socket_power") if socket in _NO_VALUE else socket
    yield "gpu_package_power", value, 1.0


def _clocks(smi: Any, handle: Any) -> Figures:
    clock = smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)
    yield "gpu_clock", clock.get("clk"), 1.0
    yield "gpu_max_clock", clock.get("max_clk"), 1.0


def _heat(smi: Any, handle: Any) -> Figures:
    read: Callable[[Any], Any] = lambda kind: smi.amdsmi_get_temp_metric(  # noqa: E731
        handle, kind, smi.AmdSmiTemperatureMetric.CURRENT
    )
    yield "gpu_junction_temperature", read(smi.AmdSmiTemperatureType.HOTSPOT), 1.0
    yield "gpu_memory_temperature", read(smi.AmdSmiTemperatureType.VRAM), 1.0


def _memory(smi: Any, handle: Any) -> Figures:
    vram = smi.amdsmi_get_gpu_vram_usage(handle)
    yield "gpu_used_vram", vram["vram_used"], 1.0
    yield "gpu_total_vram", vram["vram_total"], 1.0


def _errors(smi: Any, handle: Any) -> Figures:
    ecc = smi.amdsmi_get_gpu_total_ecc_count(handle)
    yield "gpu_ecc_correct_total", ecc["correctable_count"], 1.0
    yield "gpu_ecc_uncorrect_total", ecc["uncorrectable_count"], 1.0
