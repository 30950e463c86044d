"""A recorded window as a graph, to be replayed: `StepGraph`.

The threads of the host that hand over to one another (the main thread and autograd's) are one line of
calls. Each call has the host time before it; a call that waits has an edge to the work that it waits
for, so that its length follows from the replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

from computeflow.telemetry.traces.event_names import Call
from computeflow.telemetry.traces.host_stalls import HostStall
from computeflow.telemetry.traces.trace import Ints

QUEUE = 1022
"""Launches that the driver queues; the next one waits (1,022 seen on an H200 with CUDA 13)."""
FORWARD, BACKWARD, OPTIMIZER = 0, 1, 2
"""Phases of a step, as calls of the host have them."""


class Role(IntFlag):
    """What a piece of the device's work is for."""

    OPTIMIZER = 1
    BACKWARD = 2
    RECOMPUTE = 4
    ATTENTION = 8
    """Attention that is written out."""
    ATTENTION_PRODUCT = 16
    """A batched matrix product of such attention."""
    EVALUATION = 32
    """Forward passes without autograd."""
    FP32_PRODUCT = 64
    TF32_PRODUCT = 128
    FP32_ATTENTION = 256
    FP32_OTHER = 512
    """Other kernels of a step in float32."""
    SINGLE_UPDATE = 1024
    """The optimizer's kernels of one tensor each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLine:
    """Calls of the host in their order; times in nanoseconds."""

    start: Ints
    """Start after that of the window."""
    end: Ints
    gap: Ints
    """Host time since the call before."""
    operators: NDArray[np.int32]
    """Operators that began or ended in the gap."""
    free: Ints
    """The part of the gap in stretches of a millisecond and more in which nothing was recorded."""
    irregular: Ints
    """The part of the gap in stalls that come back at no one place."""
    loading: Ints
    """The part of the gap inside of the data loader's annotation."""
    cost: Ints
    """Time of the call; without waiting."""
    call: NDArray[np.int8]
    thread: NDArray[np.int32]
    phase: NDArray[np.int8]
    step: NDArray[np.int32]
    release: Ints
    """From the call's start to the earliest start of its work."""
    waits_for: Ints
    """Row of the device's work whose end the call waits for; -1 for none."""
    delay: Ints
    """From that end to the call's return."""
    waited: NDArray[np.bool_]
    """Whether it did wait in the recording."""

    @property
    def growing(self) -> NDArray[np.bool_]:
        """Calls that take memory from the driver where none is given back: once it has grown, steps
        make no such calls.
        """
        taking = self.call == Call.ALLOCATE
        return np.asarray(taking & ~(self.call == Call.FREE).any())

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRows:
    """Work of the device in the order of its launches; times in nanoseconds."""

    start: Ints
    """Recorded start after that of the window."""
    seconds: NDArray[np.float64]
    call: Ints
    """Row of the line that launched it; -1 where it was launched before the window."""
    offset: Ints
    """Start after that of the first work of the same call."""
    stream: NDArray[np.int32]
    gap: Ints
    """Time that the device leaves before it when it is queued, after its stream's work or after the row
    of another stream that it waits for."""
    after: Ints
    """Row on another stream that it waits for; -1 for none."""
    name: NDArray[np.int32]
    work: NDArray[np.int8]
    bytes: Ints
    row: Ints
    """Row of `Trace.device`."""
    role: NDArray[np.int16]
    """Roles of each, as `Role`s."""

    def has(self, role: Role) -> NDArray[np.bool_]:
        return np.asarray((self.role & role) != 0)

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGraph:
    steps: int
    """Whole steps in the window; 1 where no steps are known."""
    window: int
    """Length of the window on the host, in nanoseconds."""
    line: HostLine
    device: DeviceRows
    names: tuple[str, ...]
    stalls: tuple[HostStall, ...]
    launch: float
    """Median time of a launch that did not wait, in nanoseconds."""
    profiler: str
    """What recorded it: kineto, nsys, xplane."""
    has_stacks: bool
    """Whether Python functions were recorded."""
    loader: str
    """Annotation of the data loader; "" where there is none."""
    recorded_end: int
    """End of the last work that was launched in the window, after the window's start."""

    @property
    def has_workers(self) -> bool:
        """Whether worker processes load the data, and keep batches ready."""
        return "MultiProcessing" in self.loader
