"""Measurements of one rank: small values that travel between processes and into the cache."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.files.limits import PATTERN_CHARACTERS
from computeflow.telemetry.intervals import Intervals
from computeflow.telemetry.traces.hta import HtaBreakdown
from computeflow.telemetry.traces.step_graph import StepGraph
from computeflow.telemetry.traces.trace import CounterRow, Ints, Origin

MAX_NAME = 300
"""Most characters of a name; a template's name can have thousands."""
MAX_ROWS = 20
"""Most rows of the tables of longest kernels, operators and gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """The steps to measure, and how ranks are known."""

    first_step: int | None = None
    last_step: int | None = None
    rank_from: str | None = None
    """A regular expression whose first group is the rank, for the user's own file names."""
    window: str = "steps"
    """`steps`: from the first step to the last; `whole`: from the first kernel to the last; `hta`:
    without the last step."""
    replay: bool = True
    """Whether the steps are kept as a graph that can be replayed."""

    def __post_init__(self) -> None:
        if len(self.rank_from or "") > PATTERN_CHARACTERS:
            raise InputError(f"--rank-from: longer than {PATTERN_CHARACTERS:,} characters")
        try:
            re.compile(self.rank_from or "")
        except (re.error, OverflowError, RecursionError) as error:
            raise InputError(f"--rank-from {self.rank_from}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    name: str
    work: str
    count: int
    seconds: float
    """Total of these kernels, overlapped or not."""
    share: float
    """Share of the device's total kernel time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    name: str
    count: int
    seconds: float
    """Time of the kernels that it launched."""
    flops: float
    elements: float
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRow:
    start_seconds: float
    """Start, after the window's start."""
    seconds: float
    account: str
    cause: str
    following: str
    """The kernel that ran next."""
    before: str = ""
    """The operator that began last before it; "" where none is recorded."""
    inside: str = ""
    """The user's annotation, or the Python function, that most of it lies in; "" where none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRow:
    what: str
    """Direction, from where to where."""
    count: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceActivity:
    """Seconds in which the device was active, hidden under computation or not."""

    busy_seconds: float = 0.0
    """Time in which anything ran."""
    comm_seconds: float = 0.0
    comm_hidden_seconds: float = 0.0
    """Communication under computation."""
    copy_seconds: float = 0.0
    copy_hidden_seconds: float = 0.0
    copies: tuple[CopyRow, ...] = ()


class MeetingKind(IntEnum):
    """Who needs whom in a collective."""

    ALL = 0
    """Nobody leaves before everybody has come."""
    FROM_ONE = 1
    """Everybody needs one rank: broadcast, scatter."""
    TO_ONE = 2
    """One rank needs everybody: reduce, gather."""
    SEND = 3
    RECEIVE = 4


OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
ELEMENT_BYTES = {
    "bfloat16": 2, "bf16": 2, "half": 2, "float16": 2, "float": 4, "float32": 4, "double": 8,
    "int": 4, "long": 8, "int64": 8, "byte": 1, "char": 1, "uint8": 1, "int8": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""Bytes per element, by the lower-case name that traces give a message's type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCollectives:
    """A rank's collectives, in order of start; times in nanoseconds of its own clock."""

    start: Ints
    end: Ints
    group: NDArray[np.int32]
    account: NDArray[np.int32]
    step: NDArray[np.int32]
    """The step that launched it; -1 where unknown."""
    elements: Ints
    """Elements of its message; 0 where unknown."""
    bytes: Ints
    """Bytes of its message; 0 where unknown."""
    operation: NDArray[np.int8]
    """Index in `OPERATIONS`; -1 for any other operation."""
    meeting: NDArray[np.int8]
    """Who needs whom: `MeetingKind`."""
    peer: NDArray[np.int32]
    """The other rank of a message, as its process group counts; -1 where unknown."""
    tag: NDArray[np.int32]
    early: NDArray[np.bool_]
    """Whether it reduces gradients that a later backward pass of the step reduces again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLine:
    """A rank's window, cut where its collectives begin and end and where it begins and ends to wait
    for them: what each piece holds. Times in nanoseconds of the rank's own clock.
    """

    edges: Ints
    accounts: tuple[str, ...]
    seconds: NDArray[np.float32]
    """Seconds of each piece (row) in each account (column)."""
    waits: Intervals
    """When the rank waited for its collectives."""
    steps: Ints
    """Bounds of the steps: as marked, else the ends of the optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRow:
    """Matrix products of one shape in one pass."""

    name: str
    shape: str
    """Shapes of the operands, as JSON."""
    type: str
    phase: str
    """Pass: forward, backward or recompute."""
    count: int
    seconds: float
    """Time of the kernels that they launched."""
    flops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    setbacks: dict[str, float] = field(default_factory=dict)
    """Seconds of `host` in which the host was late, by what delayed it."""
    loading: dict[str, float] = field(default_factory=dict)
    """Seconds of `input`, by stage of the loader."""
    reads: dict[str, int] = field(default_factory=dict)
    """Operators that made the host wait for a value from the device, with their counts."""
    collections: int = 0
    """Runs of Python's garbage collector."""
    collection_seconds: float = 0.0
    """Host time in garbage collection."""
    pageable_seconds: float = 0.0
    """Exposed copies from or to pageable memory, including waits for them."""
    pageable_bytes: float = 0.0
    pageable_count: int = 0
    shapes: tuple[ShapeRow, ...] = ()
    """Shapes with most FLOPs first."""
    loss_seconds: float = 0.0
    """Kernels between the forward pass's last matrix product and the backward pass's first: the
    loss."""
    unfused_attention: float = 0.0
    """Seconds of kernels of unfused attention: the score products and everything between them."""
    optimizer_kernels: int = 0
    optimizer_queued: float = 0.0
    """Gaps that the device itself leaves between the optimizer's queued kernels, in seconds."""
    optimizer_single: float = 0.0
    """Seconds of the optimizer's kernels that update one tensor at a time."""
    kernels: int = 0
    """Kernels that ran, without copies and communication."""
    compiled: float = 0.0
    """Share of the step's kernels, matrix products aside, that a compiler generated."""
    allocations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMeasurement:
    source: str
    rank: int
    rank_from: str
    """How the rank is known: trace, file name, order (of files and devices), assumed."""
    world: int | None
    device: str
    """The driver's name of the device; "" where only a host was recorded."""
    on_device: bool
    steps: tuple[int, ...]
    """Step numbers, as the profiler counts."""
    step_seconds: tuple[float, ...]
    window_start: int
    """Start in nanoseconds of the rank's own clock."""
    window_end: int
    accounts: dict[str, float]
    """Seconds by account; `compute` is forward and backward, not yet split by FLOPs."""
    by_step: dict[str, tuple[float, ...]]
    host: dict[str, float]
    flops: float
    flops_full: float
    flops_by_step: tuple[float, ...]
    types: dict[str, float]
    """FLOPs by the type of their operands."""
    precision_hint: str
    """`tf32` where kernels of float32 products use it."""
    product_seconds: float
    """Time of kernels launched by operators with known FLOPs."""
    kernel_seconds: float
    kernels: tuple[KernelRow, ...]
    operators: tuple[OperatorRow, ...]
    gaps: tuple[GapRow, ...]
    queue_mean: float
    queue_most: int
    queue_empty: float
    """Share of launches that found the queue empty."""
    groups: tuple[str, ...]
    group_sizes: tuple[int, ...]
    account_names: tuple[str, ...]
    collectives: RankCollectives
    exposed: dict[str, Intervals]
    hta: HtaBreakdown | None
    missing: dict[str, str]
    """The missing signal, by account."""
    left_out: tuple[str, ...]
    signals: Signals = field(default_factory=Signals)
    trace_id: str = ""
    events: int = 0
    notes: tuple[str, ...] = field(default=())
    activity: DeviceActivity = field(default_factory=DeviceActivity)
    origin: Origin = field(default_factory=Origin)
    counters: tuple[CounterRow, ...] = ()
    graph: StepGraph | None = None
    """The window as a graph, to be replayed; None where it is not wanted or launches are unknown."""
    host_name: str = ""
    """Name of the machine; "" where the trace does not state it."""
    process_groups: tuple[tuple[int, ...], ...] = ()
    """Ranks of each process group that the trace's header states."""
    line: RankLine | None = None
    cut_short: str = ""
    """Why its file ends before its events do; "" where it does not."""
    cut_steps: tuple[int, ...] = ()
    """Steps after which nothing follows in a file that is cut short: their end may be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMeasurement:
    """The ranks of one file, and what could not be measured."""

    ranks: tuple[RankMeasurement, ...]
    left_out: tuple[str, ...] = ()
