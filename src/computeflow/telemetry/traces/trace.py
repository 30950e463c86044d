"""One rank's trace as columns, whatever profiler recorded it.

Only what a ledger needs is kept: work of the device, calls that launched it or blocked the host,
and intervals of host time with a known meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """Work of the device, in order of start. Times in nanoseconds after `Trace.base`."""

    start: Ints
    end: Ints
    name: NDArray[np.int32]
    stream: NDArray[np.int32]
    correlation: Ints
    work: NDArray[np.int8]
    bytes: Ints
    """Bytes copied; -1 where unknown or no copy."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Runtime calls that launch, block or allocate, in order of start."""

    start: Ints
    end: Ints
    correlation: Ints
    thread: NDArray[np.int32]
    call: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Intervals of host time with a known meaning, in order of start."""

    start: Ints
    end: Ints
    thread: NDArray[np.int32]
    mark: NDArray[np.int8]
    name: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Operators whose FLOPs are known from their shapes, none inside another, in order of start."""

    start: Ints
    end: Ints
    thread: NDArray[np.int32]
    name: NDArray[np.int32]
    type: NDArray[np.int32]
    flops: NDArray[np.float64]
    full: NDArray[np.float64]
    elements: NDArray[np.float64]
    scores: Ints
    shape: NDArray[np.int32]
    """Number of a name such as "[[8192,2048],[2048,5632]]", the operands' shapes; "" where unknown."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCollective:
    """A collective, as the arguments of its kernel describe it."""

    name: str
    group: str
    group_doc: str
    ranks: tuple[int, ...]
    elements: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStep:
    number: int
    start: int
    end: int
    """End of the host's annotation of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of a trace, as far as its format states it."""

    kind: str = "kineto"
    part: int = 0
    """Index of the device in the file."""
    process: int | None = None
    device: int | None = None
    """The device's number within the process."""
    plane: str = ""
    platform: str = ""
    """Platform: gpu, tpu, cpu, or the plane's own name; "" where the format has none."""
    on_clock: bool = True
    """Whether times are Unix times."""
    steps_from: str = ""
    """How steps are known, where the format itself does not mark them."""
    peak_flops: float | None = None
    """Peak FLOP/s, as the recording itself states it."""
    versions: tuple[str, ...] = ()
    """Versions of the profiler and of its format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterRow:
    """A counter, averaged over the whole recording."""

    source: str
    gpu: int
    metric: str
    mean: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    path: Path
    base: float
    """Time zero of this trace, in microseconds of the trace's own clock."""
    header: dict[str, Any]
    names: list[str]
    device: DeviceWork
    calls: Calls
    marks: Marks
    products: Products
    collectives: dict[int, TracedCollective]
    """Collectives by correlation number of their kernel."""
    operators: Marks
    """Top-level operators of the host; kept only where nothing ran on a device."""
    steps: tuple[TraceStep, ...]
    events: int
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    origin: Origin = field(default_factory=Origin)
    needs: Mapping[str, str] = field(default_factory=dict)
    """The missing signal by account, in the terms of the format."""
    launched: bool = True
    """Whether calls that launched the device's work are recorded; otherwise work counts as launched
    when it began, and the reason for idle time is unknown."""
    counters: tuple[CounterRow, ...] = ()

    @property
    def on_device(self) -> bool:
        return len(self.device) > 0


def distinct(numbers: NDArray[Any]) -> NDArray[Any]:
    """Sorted distinct values; ten times as fast as `numpy.unique`."""
    numbers = np.sort(numbers)
    first = np.concatenate([numbers[:1] == numbers[:1], numbers[1:] != numbers[:-1]])
    return np.asarray(numbers[first])
