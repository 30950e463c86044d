"""Attempts of jobs as columns: `AttemptRows` collects them one by one, `JobAttempts` is for computing.

An attempt is one stretch in which a job had its GPUs. A job that was requeued has several.
"""

from __future__ import annotations

import math
import re
from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.files.limits import ATTEMPTS, NAMES_CHARACTERS
from computeflow.telemetry.accounting.scheduler_values import NAN, OUTCOMES, Outcome, outcome_of

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
_BASE = re.compile(r"(\d+)(?:_[\d\[]|\+\d).*")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAttempt:
    """One attempt of a job. Times are Unix seconds, None where unknown."""

    job: str
    state: str
    outcome: Outcome
    gpus: float
    start: float | None
    end: float | None
    submit: float | None = None
    user: str = ""
    team: str = ""
    name: str = ""
    nodes: str = ""
    """Nodes as the scheduler writes them: `gpu[001-016]`."""

    @property
    def gpu_seconds(self) -> float:
        """GPU-seconds from start to end; 0 where either is unknown."""
        if self.start is None or self.end is None:
            return 0.0
        return self.gpus * max(self.end - self.start, 0.0)


class NameTable:
    """Words with their numbers, each kept once."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}
        self._characters = 0

    def of(self, word: str) -> int:
        number = self.number.get(word)
        if number is None:
            self._characters += len(word)
            if self._characters > NAMES_CHARACTERS:
                raise InputError(
                    f"more than {NAMES_CHARACTERS >> 20} Mi characters of names: "
                    "take a shorter period"
                )
            self.number[word] = number = len(self.number)
        return number

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.number)


_WORDS = ("job", "state", "user", "team", "name", "nodes")
_NUMBERS = ("start", "end", "submit", "eligible", "gpus", "joules", "took")


@dataclass(slots=True)
class AttemptRows:
    """Attempts while they are read."""

    numbers: dict[str, array[float]] = field(
        default_factory=lambda: {name: array("d") for name in _NUMBERS}
    )
    indices: dict[str, array[int]] = field(
        default_factory=lambda: {name: array("q") for name in _WORDS}
    )
    names: dict[str, NameTable] = field(
        default_factory=lambda: {name: NameTable() for name in _WORDS}
    )
    gaps: list[tuple[int, float, float]] = field(default_factory=list)
    """Attempt, end of a failed step, start of the next: the allocation was held, nothing ran."""
    steps_seen: bool = False
    broken: int = 0
    """Lines that could not be parsed."""
    left_out: list[str] = field(default_factory=list)
    zoneless: bool = False
    """Whether some times had no zone."""
    _last: str = ""
    _job_energy: bool = False
    """Whether the job's own line has the energy, so that its steps' is not added."""
    _reach: float = -math.inf
    _reach_failed: bool = False

    def __len__(self) -> int:
        return len(self.numbers["start"])

    def add(
        self,
        job: str,
        *,
        state: str,
        gpus: float,
        start: float = NAN,
        end: float = NAN,
        submit: float = NAN,
        eligible: float = NAN,
        joules: float = NAN,
        took: float = NAN,
        user: str = "",
        team: str = "",
        name: str = "",
        nodes: str = "",
    ) -> None:
        if len(self) >= ATTEMPTS:
            raise InputError(f"more than {ATTEMPTS:,} jobs: take a shorter period")
        words = (job, state, user, team, name, nodes)
        indices = [self.names[column].of(word) for column, word in zip(_WORDS, words, strict=True)]
        for column, index in zip(_WORDS, indices, strict=True):
            self.indices[column].append(index)
        if outcome_of(state) == "waiting":
            start = end = NAN  # an expected start is not a start
        values = (start, end, submit, eligible, gpus, joules, took)
        for column, value in zip(_NUMBERS, values, strict=True):
            self.numbers[column].append(value)
        self._reach, self._reach_failed = -math.inf, False
        self._job_energy = not math.isnan(joules)
        self._last = job

    def step(
        self, job: str, outcome: Outcome, start: float, end: float, joules: float, *, own: bool
    ) -> None:
        """Add a step of the last attempt; `own`: the job launched it, it is no batch script."""
        if job != self._last:  # its job's line could not be read
            return
        if not self._job_energy and not math.isnan(joules):
            energy = self.numbers["joules"]
            energy[-1] = joules + (0.0 if math.isnan(energy[-1]) else energy[-1])
        if own and not math.isnan(start):
            self._extend(start, end, failed=outcome == "failed")

    def _extend(self, start: float, end: float, *, failed: bool) -> None:
        """Extend the attempt to this step's end; from a failed step to the next its GPUs waited."""
        self.steps_seen = True
        if self._reach_failed and start > self._reach:
            self.gaps.append((len(self) - 1, self._reach, start))
        reach = math.inf if math.isnan(end) else end
        if reach >= self._reach:
            self._reach, self._reach_failed = reach, failed and reach < math.inf

    def finish(self) -> tuple[JobAttempts, int]:
        """The attempts without repeats (from exports that overlap), and the number of repeats."""
        number = {name: np.array(values, np.float64) for name, values in self.numbers.items()}
        index = {name: np.array(values, np.int64) for name, values in self.indices.items()}
        keep = _without_repeats(index["job"], number["start"])
        new_index = np.full(len(self), -1, np.int64)
        new_index[keep] = np.arange(len(keep))
        gaps = np.array(self.gaps, np.float64).reshape(-1, 3)
        attempt = new_index[gaps[:, 0].astype(np.int64)]
        columns: dict[str, Any] = {name: values[keep] for name, values in number.items()}
        columns |= {f"{name}_of": values[keep] for name, values in index.items()}
        jobs = JobAttempts(
            **columns,
            words={name: names.words for name, names in self.names.items()},
            gap_of=attempt[attempt >= 0],
            gap_start=gaps[attempt >= 0, 1],
            gap_end=gaps[attempt >= 0, 2],
            steps_seen=self.steps_seen,
        )
        return jobs, len(self) - len(keep)


def _without_repeats(job: Indices, start: Floats) -> Indices:
    """The last of the rows with the same job and start, in the order of the file."""
    if not len(job):
        return np.zeros(0, np.int64)
    when = np.where(np.isnan(start), -1.0, start)
    order = np.lexsort((np.arange(len(job)), when, job))
    same = (job[order][1:] == job[order][:-1]) & (when[order][1:] == when[order][:-1])
    return np.sort(order[np.concatenate([~same, [True]])])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAttempts:
    """Attempts, column by column. NaN is unknown; `<word>_of` is an index into `words`."""

    start: Floats
    end: Floats
    submit: Floats
    eligible: Floats
    """When it could have started: not held, its dependencies done."""
    gpus: Floats
    joules: Floats
    took: Floats
    """Seconds that it lasted, as the source states; up to the export for a running job."""
    job_of: Indices
    state_of: Indices
    user_of: Indices
    team_of: Indices
    name_of: Indices
    nodes_of: Indices
    words: dict[str, tuple[str, ...]]
    gap_of: Indices
    gap_start: Floats
    gap_end: Floats
    steps_seen: bool

    def __len__(self) -> int:
        return len(self.start)

    @property
    def outcome(self) -> Indices:
        """Outcome of each attempt, as an index into `OUTCOMES`."""
        indices = [OUTCOMES.index(outcome_of(state)) for state in self.words["state"]]
        return np.array(indices or [0], np.int64)[self.state_of]

    def having(self, *outcomes: Outcome) -> NDArray[np.bool_]:
        return np.isin(self.outcome, [OUTCOMES.index(outcome) for outcome in outcomes])

    @property
    def base_of(self) -> Indices:
        """The job that tasks of an array and parts of a heterogeneous job belong to."""
        names = NameTable()
        indices = [names.of(_base(job)) for job in self.words["job"]]
        return np.array(indices or [0], np.int64)[self.job_of]

    @property
    def in_array(self) -> NDArray[np.bool_]:
        tasks = [_base(job) != job for job in self.words["job"]]
        return np.array(tasks or [False])[self.job_of]

    def row(self, index: int) -> JobAttempt:
        state = self.words["state"][self.state_of[index]]
        return JobAttempt(
            job=self.words["job"][self.job_of[index]],
            state=state,
            outcome=outcome_of(state),
            gpus=float(self.gpus[index]),
            start=_known(self.start[index]),
            end=_known(self.end[index]),
            submit=_known(self.submit[index]),
            user=self.words["user"][self.user_of[index]],
            team=self.words["team"][self.team_of[index]],
            name=self.words["name"][self.name_of[index]],
            nodes=self.words["nodes"][self.nodes_of[index]],
        )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _base(job: str) -> str:
    match = _BASE.fullmatch(job)
    return match[1] if match else job
