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

from computeflow.telemetry.intervals import Intervals

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


NO_MARKS = Marks(
    start=np.zeros(0, np.int64),
    end=np.zeros(0, np.int64),
    thread=np.zeros(0, np.int32),
    mark=np.zeros(0, np.int8),
    name=np.zeros(0, np.int32),
)


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
class HostMessages:
    """Collectives that the host submits or carries out itself, as their arguments describe them, in
    order of start.
    """

    start: Ints
    end: Ints
    thread: NDArray[np.int32]
    name: NDArray[np.int32]
    peer: NDArray[np.int32]
    """The other rank of a message, as its process group counts; -1 where unknown."""
    tag: NDArray[np.int32]
    elements: Ints
    """Elements of its tensors; 0 where unknown."""

    def __len__(self) -> int:
        return len(self.start)


def no_messages() -> HostMessages:
    times, numbers = np.zeros(0, np.int64), np.zeros(0, np.int32)
    return HostMessages(
        start=times,
        end=times,
        thread=numbers,
        name=numbers,
        peer=numbers,
        tag=numbers,
        elements=times,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCollective:
    """A collective, as the arguments of its kernel describe it."""

    name: str
    group: str
    group_doc: str
    ranks: tuple[int, ...]
    elements: int
    dtype: str
    peer: int = -1
    """The other rank of a message, as its process group counts; -1 where unknown."""
    tag: int = 0


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
    """The host's operators; beside a device's work only in detailed reading."""
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
    functions: Marks = field(default_factory=lambda: NO_MARKS)
    """Python functions of a millisecond and more; only in detailed reading."""
    messages: HostMessages = field(default_factory=no_messages)
    annotations: Marks = field(default_factory=lambda: NO_MARKS)
    """Annotations of a millisecond and more whose names mean nothing by themselves: the user's own;
    and those of torch's pipelines, of any length."""
    blocked: Intervals | None = None
    """Where the host carries out its transfers itself: when it waited for one. None where a device
    does: there all communication that nothing hides is waited for."""
    cut_short: str = ""
    """Why its file ends before its events do; "" where it does not."""

    @property
    def on_device(self) -> bool:
        return len(self.device) > 0


def distinct(numbers: NDArray[Any]) -> NDArray[Any]:
    """Sorted distinct values; ten times as fast as `numpy.unique`."""
    numbers = np.sort(numbers)
    first = np.concatenate([numbers[:1] == numbers[:1], numbers[1:] != numbers[:-1]])
    return np.asarray(numbers[first])
