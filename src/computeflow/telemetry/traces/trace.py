"""One rank's trace as columns, whatever profiler recorded it.

Only what a ledger needs is kept: what ran on the device, the calls that launched it or blocked the
host, and the stretches of host time that carry a meaning.
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
    """What ran on the device, in order of start. Times in nanoseconds after `Trace.base`."""

    start: Ints
    end: Ints
    name: NDArray[np.int32]
    stream: NDArray[np.int32]
    correlation: Ints
    work: NDArray[np.int8]
    bytes: Ints
    """Of copies; -1 where it is not said."""

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
    """Stretches of host time that mean something, in order of start."""

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
    """Of the operands: a name such as "[[8192,2048],[2048,5632]]"; "" where it is not known."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """What a communication kernel's arguments say."""

    name: str
    group: str
    group_doc: str
    ranks: tuple[int, ...]
    elements: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    number: int
    start: int
    end: int
    """Of the host's annotation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a trace is from, as far as its format says."""

    kind: str = "kineto"
    part: int = 0
    """Which of the file's devices."""
    process: int | None = None
    device: int | None = None
    """The number that the process calls it by."""
    plane: str = ""
    platform: str = ""
    """gpu, tpu, cpu, or as the plane is called; "" where the format has none."""
    on_clock: bool = True
    """Times are Unix times."""
    steps_from: str = ""
    """How steps are known, where the format does not mark them itself."""
    peak_flops: float | None = None
    """Per second, as the recording itself states it."""
    versions: tuple[str, ...] = ()
    """Of the profiler and of its format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterRow:
    """A counter that was sampled over the whole recording."""

    source: str
    gpu: int
    metric: str
    mean: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    path: Path
    base: float
    """Microseconds of the trace's own clock that are time zero here."""
    header: dict[str, Any]
    names: list[str]
    device: DeviceWork
    calls: Calls
    marks: Marks
    products: Products
    collectives: dict[int, Collective]
    """By correlation of the kernel."""
    operators: Marks
    """Top-level operators of the host; kept only where nothing ran on a device."""
    steps: tuple[Step, ...]
    events: int
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    origin: Origin = field(default_factory=Origin)
    needs: Mapping[str, str] = field(default_factory=dict)
    """Account to the signal that tells it, in the words of the format."""
    launched: bool = True
    """The calls that launched the device's work are recorded; else it counts as launched when it began,
    and nobody knows why the device had nothing to do."""
    counters: tuple[CounterRow, ...] = ()

    @property
    def on_device(self) -> bool:
        return len(self.device) > 0


def distinct(numbers: NDArray[Any]) -> NDArray[Any]:
    """In order, each once; numpy's own takes ten times as long."""
    numbers = np.sort(numbers)
    first = np.concatenate([numbers[:1] == numbers[:1], numbers[1:] != numbers[:-1]])
    return np.asarray(numbers[first])
