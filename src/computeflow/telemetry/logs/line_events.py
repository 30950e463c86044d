"""Events that a log line can report. Times in seconds, rates per second; None is "not stated"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


def finite(loss: float | None) -> float | None:
    """The loss; None for NaN and infinity, which are counted elsewhere."""
    return loss if loss is not None and math.isfinite(loss) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """A logged iteration; figures are averages over the iterations since the one logged before."""

    iteration: int
    seconds: float | None = None
    """Seconds per iteration, as the log states them."""
    total: int | None = None
    loss: float | None = None
    batch: int | None = None
    """Samples per iteration, over all ranks."""
    sequence: int | None = None
    tokens_per_second: float | None = None
    gpu_tokens_per_second: float | None = None
    gpu_tflops: float | None = None
    mfu: float | None = None
    """A fraction, not per cent."""
    nans: int = 0
    skipped: int = 0
    elapsed: float | None = None
    """Seconds on the log's own clock (a progress bar's)."""
    bar: str = ""
    """The progress bar that shows the step."""
    from_zero: bool = False
    """Whether the framework numbers its first iteration 0."""
    from_one: bool = False
    """Whether the count is of a stated total, so that its first is 1."""
    unit: str = "steps"
    """Unit of `iteration`: "epochs" where a log has nothing finer."""
    weak: bool = False
    """Whether the line counts only in a log that has no better ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Milliseconds by timer: of the rank that prints (`one`), the fastest rank (`least`), the
    slowest (`most`), or the mean of the ranks that printed.
    """

    form: Literal["one", "least", "most", "mean"]
    milliseconds: Mapping[str, float]
    ranks: int = 1
    """Ranks that have printed so far, where `form` is `mean`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingLine:
    """Properties of the job that the log states: world size, layout, batch, checkpoint folder."""

    values: Mapping[str, str]
    launch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The program starts, or starts again after iteration `after`."""

    after: int | None = None
    begins: bool = False
    """Whether the next iteration starts here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    phase: Literal["saving", "saved", "loading", "loaded"]
    iteration: int | None = None
    seconds: float | None = None
    blocking: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    phase: Literal["start", "end"]
    iteration: int | None = None
    loss: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFailure:
    """The rank that a launcher saw fail before all others."""

    local_rank: int | None
    exit_code: int | None
    signal: str
    """Name of the signal that ended it; empty where it exited by itself."""
    error: str
    """The last line of its traceback, if it was recorded."""
    error_file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    what: str
    detail: str = ""
    rank: int | None = None
    node: str = ""
    waited_seconds: float | None = None
    """Seconds that ranks hung before this line."""
    fault: bool = True
    first: FirstFailure | None = None
    """What the launcher reports as the first failure of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    seconds: float | None = None
    """Seconds of the whole training, as the log states them."""
    steps: int | None = None
    """Steps of the whole training, as the stated rate gives them."""
    whole: bool = True
    """Whether all requested steps were done; else a stop on request, to be resumed later."""


Event = StepLine | Timers | SettingLine | Launch | Checkpoint | Evaluation | Failure | Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePosition:
    """The writer of a line and its position."""

    file: str
    line: int
    rank: int | None = None
    node: str = ""
    stream: str = ""
    """Rank, host or process as the prefix names it; lines of one stream are in order."""
    seconds: float | None = None
    """Unix time of the line, if it carries one."""
    dated: bool = True
    """Whether the time has a year."""

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"
