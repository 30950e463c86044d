"""What a profile says of each device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from computeflow.telemetry.traces.measured import GapRow, KernelRow


@dataclass(frozen=True, slots=True, kw_only=True)
class XPlaneDevice:
    """One device: the accounts sum to the seconds of its window."""

    rank: int
    source: str
    plane: str
    device: int
    platform: str
    name: str
    """Of the device; "" where the profile does not say."""
    seconds: float
    accounts: Mapping[str, float]
    host: Mapping[str, float]
    """Of the account `host`, by cause."""
    steps: tuple[int, ...]
    steps_from: str
    step_seconds: tuple[float, ...]
    busy_seconds: float
    """In which anything ran."""
    comm_seconds: float
    comm_hidden_seconds: float
    """Of these, under computation."""
    model_flops: float | None
    """In the window, as the profile's `model_flops` sum; None where it has none."""
    peak_flops: float | None
    """Per second, as the profile states it."""
    kernels: tuple[KernelRow, ...]
    gaps: tuple[GapRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class XPlane:
    """One job: the files of one folder."""

    devices: tuple[XPlaneDevice, ...]
    shared_collectives: int
    """Found on several devices, by the names and the order of their operations."""
