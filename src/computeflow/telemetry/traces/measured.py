"""What is kept of one rank: small values that travel between processes and into the cache."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.telemetry.intervals import Intervals
from computeflow.telemetry.traces.hta import HtaBreakdown
from computeflow.telemetry.traces.trace import CounterRow, Ints, Origin

MOST_NAME = 300
"""Characters; a template's name can be thousands."""
MOST_ROWS = 20
"""Of tables of the longest kernels, operators and gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked of a rank's trace."""

    first_step: int | None = None
    last_step: int | None = None
    rank_from: str | None = None
    """A regular expression whose first group is the rank, for file names of one's own."""
    window: str = "steps"
    """steps: from the first to the last; whole: from the first kernel to the last; hta: without the
    last step."""

    def __post_init__(self) -> None:
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
    """Of all of them, overlapped or not."""
    share: float
    """Of all the device's work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    name: str
    count: int
    seconds: float
    """Of the kernels that it launched."""
    flops: float
    elements: float
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRow:
    start_seconds: float
    """After the window's start."""
    seconds: float
    account: str
    cause: str
    following: str
    """What ran next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRow:
    what: str
    """From where to where."""
    count: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Seconds of the window in which the device did something, hidden under computation or not."""

    busy_seconds: float = 0.0
    """In which anything ran."""
    comm_seconds: float = 0.0
    comm_hidden_seconds: float = 0.0
    """Of these, under computation."""
    copy_seconds: float = 0.0
    copy_hidden_seconds: float = 0.0
    copies: tuple[CopyRow, ...] = ()


OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
ELEMENT_BYTES = {
    "bfloat16": 2, "bf16": 2, "half": 2, "float16": 2, "float": 4, "float32": 4, "double": 8,
    "int": 4, "long": 8, "int64": 8, "byte": 1, "char": 1, "uint8": 1, "int8": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""By the lower-case name that traces give a message's type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """In order of start; times in nanoseconds of the rank's own clock."""

    start: Ints
    end: Ints
    group: NDArray[np.int32]
    account: NDArray[np.int32]
    step: NDArray[np.int32]
    """In which it was launched; -1 where that is not known."""
    elements: Ints
    """Of its message; 0 where that is not known."""
    bytes: Ints
    """Of its message; 0 where that is not known."""
    operation: NDArray[np.int8]
    """Place in `OPERATIONS`; -1: another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRow:
    """Products of one shape in one pass."""

    name: str
    shape: str
    """Of the operands, as JSON."""
    type: str
    phase: str
    """forward, backward or recompute."""
    count: int
    seconds: float
    """Of the kernels that they launched."""
    flops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    setbacks: dict[str, float] = field(default_factory=dict)
    """Of the account `host`, the late gaps by what set the host back."""
    loading: dict[str, float] = field(default_factory=dict)
    """Of the account `input`, by stage of the loader."""
    reads: dict[str, int] = field(default_factory=dict)
    """Operators with which the host read values of the device while it had to wait."""
    collections: int = 0
    """Of Python's garbage."""
    collection_seconds: float = 0.0
    """Of the host, in them."""
    pageable_seconds: float = 0.0
    """Exposed in copies from or to pageable memory, waits for them included."""
    pageable_bytes: float = 0.0
    pageable_count: int = 0
    shapes: tuple[ShapeRow, ...] = ()
    """Most FLOPs first."""
    loss_seconds: float = 0.0
    """Of kernels between the forward pass's last product and the backward pass's first: the loss."""
    unfused_attention: float = 0.0
    """Seconds of kernels of attention that is written out: products of scores and all between them."""
    optimizer_kernels: int = 0
    optimizer_queued: float = 0.0
    """Seconds that the device itself takes between the optimizer's kernels."""
    optimizer_single: float = 0.0
    """Seconds of the optimizer's kernels that update one tensor at a time."""
    kernels: int = 0
    """That the device ran, copies and communication aside."""
    compiled: float = 0.0
    """Share of the step's kernels, products aside, that a compiler wrote."""
    allocations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMeasured:
    source: str
    rank: int
    rank_from: str
    """How the rank is known: trace, file name, order (of files and devices), assumed."""
    world: int | None
    device: str
    """As the driver calls it; "" on a host alone."""
    on_device: bool
    steps: tuple[int, ...]
    """Numbers, as the profiler counts."""
    step_seconds: tuple[float, ...]
    window_start: int
    """Nanoseconds of the rank's own clock."""
    window_end: int
    accounts: dict[str, float]
    """Seconds; `compute` is forward and backward, not yet split by FLOPs."""
    by_step: dict[str, tuple[float, ...]]
    host: dict[str, float]
    flops: float
    flops_full: float
    flops_by_step: tuple[float, ...]
    types: dict[str, float]
    """FLOPs by the type of their operands."""
    precision_hint: str
    """"tf32" where kernels of float32 products are."""
    product_seconds: float
    """Of kernels that operators with known FLOPs launched."""
    kernel_seconds: float
    kernels: tuple[KernelRow, ...]
    operators: tuple[OperatorRow, ...]
    gaps: tuple[GapRow, ...]
    queue_mean: float
    queue_most: int
    queue_empty: float
    """Share of launches that found nothing waiting."""
    groups: tuple[str, ...]
    group_sizes: tuple[int, ...]
    account_names: tuple[str, ...]
    collectives: Collectives
    exposed: dict[str, Intervals]
    hta: HtaBreakdown | None
    missing: dict[str, str]
    """Account to the signal that the trace lacks."""
    left_out: tuple[str, ...]
    signals: Signals = field(default_factory=Signals)
    trace_id: str = ""
    events: int = 0
    notes: tuple[str, ...] = field(default=())
    activity: Activity = field(default_factory=Activity)
    origin: Origin = field(default_factory=Origin)
    counters: tuple[CounterRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMeasured:
    """The ranks of one file, and what of it could not be measured."""

    ranks: tuple[RankMeasured, ...]
    left_out: tuple[str, ...] = ()
