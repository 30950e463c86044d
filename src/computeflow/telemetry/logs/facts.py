"""What logs say, as values: `Run` of a training log, `Bandwidth` of a collective benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Logged iterations up to `iteration`; figures are their averages."""

    iteration: int
    steps: int
    seconds: float | None
    """Of one step."""
    loss: float | None
    at: float | None
    """Unix time, where known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A loss far above those before it: statistically (median and MAD of a window) and practically."""

    iteration: int
    loss: float
    usual: float
    points: int
    """Logged iterations until it was back."""
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    after: int | None
    """The last iteration before."""
    resumed: int | None
    """The first iteration after, as logged."""
    seconds: float | None
    """From the last step before to the first one after, without that step."""
    lost_steps: int
    cause: str
    """The last failure that the log names before it; empty: none."""
    cause_where: str
    at: float | None
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    iteration: int
    seconds: float
    usual_seconds: float | None
    at: float | None
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    iteration: int | None
    seconds: float | None
    at: float | None
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """An evaluation."""

    iteration: int | None
    seconds: float | None
    score: float | None
    """The loss, or what the log scores by."""
    at: float | None
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    framework: str
    """As its lines tell; "progress bar" where only that is there."""
    files: tuple[str, ...]
    """In the order in which they were read."""
    lines: int
    unit: str
    """What is counted: steps, or epochs where a log has nothing finer."""
    steps: int
    """Done, those done again included."""
    points: int
    """Lines that log a step."""
    first_step: int | None
    last_step: int | None
    total_steps: int | None
    """That the job is to do."""
    step_seconds: float | None
    """Mean over all steps, as stated; measured between times where not stated."""
    step_seconds_median: float | None
    world_size: int | None
    layout: Mapping[str, int]
    batch: int | None
    """Samples of a step."""
    sequence: int | None
    tokens_per_second: float | None
    """Of the job: stated, or batch times sequence over step time."""
    claimed_gpu_tflops: float | None
    """The log's own figures, means; how it counts FLOPs is its own matter."""
    claimed_mfu: float | None
    first_loss: float | None
    last_loss: float | None
    spikes: tuple[Spike, ...] = ()
    nan_steps: int = 0
    skipped_steps: int = 0
    restarts: tuple[Restart, ...] = ()
    stalls: tuple[Stall, ...] = ()
    saves: tuple[Save, ...] = ()
    evaluations: tuple[Scored, ...] = ()
    timers_ms: Mapping[str, float] = field(default_factory=dict)
    """Means per step, as the log prints them."""
    timers_form: str = ""
    series: tuple[Point, ...] = ()
    """At most some hundred, neighbours taken together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    bytes: int
    out_of_place_seconds: float | None
    out_of_place_bus: float | None
    """Bytes per second."""
    in_place_seconds: float | None
    in_place_bus: float | None
    algorithm: float | None
    """Bytes per second, the better of both."""
    kind: str = ""
    operation: str = ""
    wrong: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """Output of a collective benchmark: nccl-tests, or all_reduce_bench of bigscience."""

    tool: str
    file: str
    collective: str
    """As the output names it; empty where it does not."""
    ranks: int | None
    devices: tuple[str, ...]
    rows: tuple[Row, ...]
    average_bus: float | None
    """Bytes per second, as the output states it (or the mean of the rounds)."""
    wrong_values: int | None
    rounds: int = 1
    mean_seconds: float | None = None
    """Of a round, over all ranks and rounds."""
