"""Results of reading logs: `LoggedRun` for a training log, `Bandwidth` for a collective benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """Logged iterations up to `iteration`; figures are their averages."""

    iteration: int
    steps: int
    seconds: float | None
    """Seconds per step."""
    loss: float | None
    at: float | None
    """Unix time, where known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A loss far above earlier ones, both statistically (median and MAD of a window) and in size."""

    iteration: int
    loss: float
    usual: float
    points: int
    """Logged iterations until the loss was back."""
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    after: int | None
    """The last iteration before the restart."""
    resumed: int | None
    """The first iteration logged after the restart."""
    seconds: float | None
    """Seconds from the end of the last step before to the start of the first step after."""
    lost_steps: int
    cause: str
    """The failure that the log names before the restart; empty where it names none."""
    cause_where: str
    at: float | None
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """The rank that the launcher saw fail first."""

    rank: int | None
    node: str
    local_rank: int | None
    exit_code: int | None
    signal: str
    error: str
    """The last line of its traceback, if the launcher has it."""
    error_file: str
    after: int | None
    """The last iteration logged before."""
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
class LoggedEvaluation:
    """An evaluation."""

    iteration: int | None
    seconds: float | None
    score: float | None
    """The loss, or the score that the log states."""
    at: float | None
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedColumn:
    """A number in a learned line."""

    name: str
    """The text before it, or its header; may be empty."""
    example: str
    """As the first line writes it."""
    meaning: str
    unit: str
    sure: bool
    """Whether it is certain enough to be used."""
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedLine:
    """A line whose format was learned from the log itself, with the meaning of its columns."""

    template: str
    lines: int
    """Lines of this template in the beginning of the log."""
    evaluation: bool
    """Whether it reports an evaluation, not a step."""
    columns: tuple[LearnedColumn, ...]

    @property
    def loss(self) -> bool:
        return any("loss" in column.meaning for column in self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    framework: str
    """The framework that wrote the lines; "progress bar" where there is nothing else."""
    files: tuple[str, ...]
    """Files in the order in which they were read."""
    lines: int
    unit: str
    """The unit of counting: steps, or epochs where a log has nothing finer."""
    steps: int
    """Steps done, including those done again."""
    points: int
    """Lines that log a step."""
    first_step: int | None
    last_step: int | None
    total_steps: int | None
    """Steps that the job is to do."""
    step_seconds: float | None
    """Mean over all steps, as stated; measured between the lines' times where not stated."""
    step_seconds_median: float | None
    world_size: int | None
    layout: Mapping[str, int]
    batch: int | None
    """Samples per step."""
    sequence: int | None
    tokens_per_second: float | None
    """Rate of the whole job: stated, or batch times sequence over step time."""
    claimed_gpu_tflops: float | None
    """Mean of the figures that the log states, by its own count of FLOPs."""
    claimed_mfu: float | None
    first_loss: float | None
    last_loss: float | None
    spikes: tuple[Spike, ...] = ()
    nan_steps: int = 0
    skipped_steps: int = 0
    restarts: tuple[Restart, ...] = ()
    root_causes: tuple[RootCause, ...] = ()
    """Failures that a launcher reports, each with the rank that failed first."""
    stalls: tuple[Stall, ...] = ()
    saves: tuple[Save, ...] = ()
    evaluations: tuple[LoggedEvaluation, ...] = ()
    timers_ms: Mapping[str, float] = field(default_factory=dict)
    """Means per step, as the log prints them."""
    timers_form: str = ""
    learned: tuple[LearnedLine, ...] = ()
    """Lines whose format was learned from the log; empty where a known framework wrote it."""
    series: tuple[StepPoint, ...] = ()
    """Points over the run, at most a few hundred; neighbours are merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthRow:
    bytes: int
    out_of_place_seconds: float | None
    out_of_place_bus: float | None
    """Bus bandwidth in bytes per second."""
    in_place_seconds: float | None
    in_place_bus: float | None
    algorithm: float | None
    """Algorithm bandwidth in bytes per second, the better of both."""
    kind: str = ""
    operation: str = ""
    wrong: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """Output of a collective benchmark: nccl-tests, or all_reduce_bench of bigscience."""

    tool: str
    file: str
    collective: str
    """The collective's name in the output; empty where there is none."""
    ranks: int | None
    devices: tuple[str, ...]
    rows: tuple[BandwidthRow, ...]
    average_bus: float | None
    """Bytes per second, as the output states it (or the mean of the rounds)."""
    wrong_values: int | None
    rounds: int = 1
    mean_seconds: float | None = None
    """Mean seconds of a round, over all ranks and rounds."""
