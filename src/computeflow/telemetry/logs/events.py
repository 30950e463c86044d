"""What a line of a log can say. Times in seconds, rates per second; None is "not stated"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


def finite(loss: float | None) -> float | None:
    """None for NaN and infinity: they are counted and said elsewhere, and no value."""
    return loss if loss is not None and math.isfinite(loss) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A logged iteration; figures are averages over the iterations since the one logged before."""

    iteration: int
    seconds: float | None = None
    """Of one iteration, as the log states it."""
    total: int | None = None
    loss: float | None = None
    batch: int | None = None
    """Samples of an iteration, over all ranks."""
    sequence: int | None = None
    tokens_per_second: float | None = None
    gpu_tokens_per_second: float | None = None
    gpu_tflops: float | None = None
    mfu: float | None = None
    """A share, not per cent."""
    nans: int = 0
    skipped: int = 0
    elapsed: float | None = None
    """On a clock of the log's own (a progress bar's)."""
    bar: str = ""
    """Which progress bar."""
    from_zero: bool = False
    """The framework calls its first iteration 0."""
    unit: str = "steps"
    """What `iteration` counts: "epochs" where a log has nothing finer."""
    weak: bool = False
    """Counts only in a log that has no better line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Milliseconds by timer. `one`: of the rank that prints; `least`: of the fastest rank;
    `most`: of the slowest; `mean`: over the ranks that printed.
    """

    form: Literal["one", "least", "most", "mean"]
    milliseconds: Mapping[str, float]
    ranks: int = 1
    """Of `mean`: how many printed so far; the line of the last is of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the log says of the job: world size, layout, batch, where it saves."""

    values: Mapping[str, str]
    launch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The program starts (again). `after`: the last iteration that it need not do."""

    after: int | None = None
    begins: bool = False
    """The next iteration starts here."""


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
class Failure:
    what: str
    detail: str = ""
    rank: int | None = None
    node: str = ""
    waited_seconds: float | None = None
    """For how long ranks hung before this was said."""
    fault: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    seconds: float | None = None
    """Of the whole training, as the log states it."""
    whole: bool = True
    """All that was asked for was done; else a stop on request, to be taken up later."""


Event = Step | Timers | Setting | Launch | Checkpoint | Evaluation | Failure | Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Who wrote a line and where it stands."""

    file: str
    line: int
    rank: int | None = None
    node: str = ""
    stream: str = ""
    """Rank, host or process, as the prefix has it: lines of one stream are in order."""
    seconds: float | None = None
    """Unix time of the line, if it carries one."""
    dated: bool = True
    """The time has a year."""

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"
