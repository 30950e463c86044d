"""What a run folder shows, beside its ledger: `RecordedRun`, field for field in JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAttempt:
    attempt: int
    start: float
    """Unix time."""
    end: float
    ranks: int
    steps: int
    first_count: int | None
    """The optimizer's own count of its first step; None where it is not known."""
    last_count: int | None
    redone_steps: int
    """Steps that an earlier attempt had done."""
    ended: str
    """How its processes ended; "" where they do not say: still running, killed or cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Seconds of a step that a rank spends by itself, beyond the median of the others."""

    seconds: float
    """Median over the steps."""
    mean_seconds: float
    spread_seconds: float
    """Standard deviation from step to step, from the median absolute deviation."""
    steps: int
    by_part: dict[str, float]
    """Means by what it does; the most first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRank:
    rank: int
    host: str
    gpu: str
    steps: int
    booked_steps: int
    """Steps that are in the ledger: without the first of an attempt, which is start-up, and those done
    again."""
    step_seconds: float | None
    """Median of steady steps."""
    own_seconds: float | None
    """Median time of a step without waits and transfers."""
    parts: dict[str, float]
    """Mean seconds of a steady step by what the rank does."""
    wait_seconds: float
    """Seconds of the run that it waited for others."""
    waited_for_seconds: float
    """Seconds that others waited for it."""
    waited_for: dict[str, float]
    """The same by what it did meanwhile."""
    came_last: float | None
    """Share of shared collectives that it came last to."""
    excess: Excess | None
    tokens: float | None
    """Mean tokens of a step."""
    collections: int
    memory: dict[str, int]
    dropped: int
    errors: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlace:
    """Host time outside of known phases, by where in the step it lies."""

    where: str
    before: str
    """Letter of the phase before it; "" for the edge of the step."""
    after: str
    seconds: float
    """GPU-seconds of all ranks in which the device, or the rank, stood still for it."""
    long_seconds: float
    """Those of pieces of 3 ms or more."""
    count: int
    """How many of those."""
    longest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Checkpoints, evaluations or garbage collections of all ranks."""

    count: int
    seconds: float
    """GPU-seconds."""
    longest_seconds: float
    by_rank: dict[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveTimes:
    """How often the run saves, and how long a save blocks it."""

    count: int
    """Steps in which a rank saved, those of short saves left out."""
    seconds: float
    """Median time that a save blocks the rank that takes longest."""
    interval_seconds: float
    """Median time between two saves, without their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGrowth:
    """Step time of the first third of steady steps against the last."""

    early_seconds: float
    late_seconds: float
    noise_seconds: float
    """How far medians of blocks of steps differ inside a third."""
    apart: bool
    """Whether every block of the last third is slower than every one of the first."""
    account: str
    """The account that grew most."""
    lost_seconds: float
    """GPU-seconds of steps beyond the early ones."""
    per_token: bool
    """Whether steps are compared by time per token, as their tokens differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """The step that the run was started for (`record --expect`)."""

    source: str
    gpus: int
    step_seconds: float
    high_seconds: float
    """The slow end of its range; the step itself where the plan has none."""
    accounts: dict[str, float]
    """GPU-seconds of one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckRun:
    """No step since then, though processes live."""

    seconds: float
    """From the end of the last step to the last heart beat."""
    usual_seconds: float
    """Median step."""
    step: int
    missing: tuple[int, ...]
    """Ranks that have not come to a collective that others are in."""
    waiting: tuple[int, ...]
    inside: dict[int, str]
    """What each rank is in, in words."""
    inside_seconds: dict[int, float]
    """For how long."""
    wait_seconds: float | None
    """How long ranks have waited in a collective; None where none does, as far as is known."""
    operations: dict[int, str]
    """What ranks came to under one number of a collective, where they disagree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentRank:
    """A rank whose file ends without a last record, while other ranks of its attempt lived on."""

    rank: int
    host: str
    attempt: int
    last_attempt: bool
    """Whether no other attempt followed."""
    step: int
    """Its last one; 0 for none."""
    last_seen: float
    """Unix time of its last record."""
    wait_seconds: float
    """How long the rank that waited longest for it did so."""
    lost_seconds: float
    """GPU-seconds of all ranks that waited, and of its own device meanwhile."""
    others: str
    """What became of the others, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    name: str
    command: str
    folder: str
    start: float
    """Unix time."""
    end: float
    state: Literal["ended", "open"]
    """`open`: some process has not said that it ended (it runs, was killed, or was cut off)."""
    device: str
    gpu: str
    framework: tuple[str, ...]
    versions: dict[str, str]
    parameters: int | None
    ranks: int
    world: int
    hosts: int
    attempts: tuple[RecordedAttempt, ...]
    steps: int
    """Steps finished, those done again included."""
    redone_steps: int
    profiled_steps: int
    """Steps under a profiler, which are kept out of the figures below."""
    profiler_seconds: float
    """What profiler windows cost the rank that lost most by them; it is booked on `host`."""
    steady_steps: int
    step_seconds: float | None
    """Median of steady steps, over all ranks."""
    step_spread_seconds: float | None
    tokens_per_step: float | None
    samples_per_step: float | None
    tokens_per_second: float | None
    samples_per_second: float | None
    parts: dict[str, float]
    """Median seconds of a steady step by what ranks do, over all ranks."""
    accounts_by_rank: dict[int, dict[str, float]]
    """GPU-seconds of each rank's own ledger."""
    per_rank: tuple[RecordedRank, ...]
    places: tuple[HostPlace, ...]
    checkpoints: Pauses
    evaluations: Pauses
    collections: Pauses
    growth: StepGrowth | None
    saves: SaveTimes | None
    """None where fewer than two saves were seen in steps."""
    stuck: StuckRun | None
    silent: tuple[SilentRank, ...]
    dropped: int
    """Records that the recorder dropped."""
    waits_missing: str
    first_loss: float | None
    last_loss: float | None
    planned: PlannedStep | None = None
