"""Facts from a memory snapshot, by device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Expandable = Literal["yes", "no", "already on", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSite:
    """Allocations made at one place in the code."""

    where: str
    """The user's own code where the stack has it; "" where there is no stack."""
    owner: str
    bytes: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """The moment at which most memory was allocated."""

    seconds: float | None
    """Unix time."""
    allocated_bytes: int
    reserved_bytes: int
    owners: Mapping[str, int]
    """Bytes by owner."""
    sites: tuple[AllocationSite, ...]
    """The largest sites."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragmentation:
    """Free memory when the allocator last had to request a large segment from the device."""

    seconds: float | None
    reserved_bytes: int
    allocated_bytes: int
    split_bytes: int
    """Free, but in segments that are otherwise in use: no other process can have it."""
    page_bytes: int
    """The part of `split_bytes` in ranges of 20 MiB and more, which expandable segments could
    release."""
    cached_bytes: int
    """Free in whole segments, which can be released."""
    largest_free_bytes: int
    wanted_bytes: int

    @property
    def share(self) -> float:
        return self.split_bytes / self.reserved_bytes if self.reserved_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Creep:
    """Growth of the lowest allocated memory, from step to step."""

    steps: int
    bytes_per_step: float
    low: float
    """Lower bound of a 99 % interval."""
    high: float
    floor_bytes: int
    """Lowest allocated memory of the last step."""
    still: bool
    """Whether the last third of the steps grows, too."""
    sites: tuple[AllocationSite, ...]
    """Sites of allocations that were made in these steps and are still held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    seconds: float | None
    asked_bytes: int
    device_free_bytes: int | None
    """Memory that the driver still had; where it exceeds the request, a limit of the process was
    reached."""
    allocated_bytes: int
    reserved_bytes: int
    split_bytes: int
    """Reserved and free, but in pieces."""
    largest_free_bytes: int
    missing_bytes: int
    """The part of the request beyond all free memory: 0 where only fragmentation was the problem."""
    expandable: Expandable
    """Whether expandable segments would have sufficed."""
    why: str
    where: str
    owners: Mapping[str, int]
    """Allocated bytes by owner."""

    @property
    def limited(self) -> bool:
        return self.device_free_bytes is not None and self.device_free_bytes >= self.asked_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Times that the allocator released segments to the device in order to reserve others."""

    count: int
    freed_bytes: int
    seconds: float | None
    """Time from the first segment released to the one reserved; None where events have no times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    device: int
    events: int
    whole: bool
    """Whether the history begins with the first allocation."""
    seconds: float | None
    """Time from the first event to the last."""
    allocated_bytes: int
    """Allocated bytes at the end."""
    reserved_bytes: int
    peak: MemoryPeak
    peak_reserved_bytes: int
    steps: int
    steps_from: str
    fragmentation: Fragmentation | None
    creep: Creep | None
    out_of_memory: tuple[OutOfMemory, ...]
    retries: Retries
    segments_got: int
    segments_given_back: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """Memory of one process."""

    rank: int | None
    devices: tuple[DeviceMemory, ...]
    settings: Mapping[str, str | float | bool]
    """Settings of the allocator."""
