"""What a snapshot says of each device's memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Expandable = Literal["yes", "no", "already on", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Allocations of one place in the code."""

    where: str
    """The user's own code where the stack has it; "" where there is no stack."""
    owner: str
    bytes: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The moment at which most was allocated."""

    seconds: float | None
    """Unix time."""
    allocated_bytes: int
    reserved_bytes: int
    owners: Mapping[str, int]
    """Bytes by owner."""
    sites: tuple[Site, ...]
    """The largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragmentation:
    """When the allocator last had to ask the device for a large segment."""

    seconds: float | None
    reserved_bytes: int
    allocated_bytes: int
    split_bytes: int
    """Free, but in segments that are in use elsewhere: nobody else can have it."""
    page_bytes: int
    """Of these, in places of 20 MiB and more: expandable segments could give them back."""
    cached_bytes: int
    """Free in whole segments, which can be given back."""
    largest_free_bytes: int
    wanted_bytes: int

    @property
    def share(self) -> float:
        return self.split_bytes / self.reserved_bytes if self.reserved_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Creep:
    """Growth of what is allocated at the least, from step to step."""

    steps: int
    bytes_per_step: float
    low: float
    """Of a 99 % interval."""
    high: float
    floor_bytes: int
    """At the end."""
    still: bool
    """The last third of the steps grows, too."""
    sites: tuple[Site, ...]
    """What was made in these steps and is still there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    seconds: float | None
    asked_bytes: int
    device_free_bytes: int | None
    """What the driver still had; more than was asked for: a limit of the process was reached."""
    allocated_bytes: int
    reserved_bytes: int
    split_bytes: int
    """Reserved and free, but in pieces."""
    largest_free_bytes: int
    missing_bytes: int
    """Of what was asked for, beyond everything that is free: 0 where only pieces were the trouble."""
    expandable: Expandable
    """Whether expandable segments would have sufficed."""
    why: str
    where: str
    owners: Mapping[str, int]
    """Bytes that were allocated, by owner."""

    @property
    def limited(self) -> bool:
        return self.device_free_bytes is not None and self.device_free_bytes >= self.asked_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Times that the allocator gave segments back to the device in order to get others."""

    count: int
    freed_bytes: int
    seconds: float | None
    """From the first segment given back to the one that was got; None where events have no times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    device: int
    events: int
    whole: bool
    """The history begins with the first allocation."""
    seconds: float | None
    """From the first event to the last."""
    allocated_bytes: int
    """At the end."""
    reserved_bytes: int
    peak: Peak
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
class Memory:
    """One process."""

    rank: int | None
    devices: tuple[DeviceMemory, ...]
    settings: Mapping[str, str | float | bool]
    """Of the allocator."""
