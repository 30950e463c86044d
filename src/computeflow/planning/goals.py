"""`Goals` of a whole training and what they leave for a step; `Search` looks for plans.

A deadline and a budget for all tokens become the longest step that keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from computeflow.cluster import MAX_GPUS, Cluster, resize_cluster
from computeflow.economics import TrainingTotals, gpu_seconds_of, training_totals
from computeflow.errors import InputError, UnknownNameError
from computeflow.files.names import shown
from computeflow.planning.limits import Limits
from computeflow.planning.plans import Plan, Plans, nearest_that_fits, plan, why_no_plan
from computeflow.planning.quick_spaces import quick_space
from computeflow.planning.search import Objective, Progress
from computeflow.planning.space import Space, space_of
from computeflow.prediction.memory import HEADROOM
from computeflow.prediction.stack import Stack, usual_stack
from computeflow.units import format_seconds
from computeflow.workload import Job, Layout
from computeflow.workload.layout import CHOICES, SIZES


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """Limits of a whole training: time, money, power."""

    tokens: float | None = None
    price: float | None = None
    """Dollars for a GPU-hour."""
    deadline_seconds: float | None = None
    budget: float | None = None
    power_cap: float | None = None
    """Watts of a GPU, averaged over a step."""
    headroom: float = HEADROOM
    """Share of a device's memory that a plan may fill."""

    def __post_init__(self) -> None:
        for option, value in self._given().items():
            if value is not None and not 0 < value < float("inf"):
                raise InputError(f"{option} {value:g} must be above zero and finite")
        if (self.deadline_seconds or self.budget) and not self.tokens:
            raise InputError("--deadline and --budget need --tokens")
        if self.budget and not self.price:
            raise InputError("--budget needs --price")

    def _given(self) -> dict[str, float | None]:
        return {
            "--tokens": self.tokens,
            "--price": self.price,
            "--deadline": self.deadline_seconds,
            "--budget": self.budget,
            "--power-cap": self.power_cap,
        }

    @property
    def narrow(self) -> bool:
        return any((self.deadline_seconds, self.budget, self.power_cap))

    def limits(self, job: Job, gpus: int) -> Limits:
        """Limits of one step of this job on so many GPUs."""
        seconds = [self.deadline_seconds] if self.deadline_seconds else []
        if self.budget and self.price:
            seconds.append(gpu_seconds_of(self.budget, self.price) / gpus)
        step = min(seconds) * job.step_tokens / self.tokens if seconds and self.tokens else None
        return Limits(headroom=self.headroom, watts_per_gpu=self.power_cap, step_seconds=step)

    def totals(self, plan: Plan) -> TrainingTotals:
        """Days, dollars and energy of the whole training, as far as they are known."""
        prediction = plan.prediction
        return training_totals(
            step_seconds=prediction.step_seconds,
            joules_per_step=prediction.ledger.joules,
            tokens=self.tokens,
            step_tokens=prediction.job.step_tokens,
            gpus=plan.layout.gpus,
            usd_per_gpu_hour=self.price,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A request for plans; `run` searches, and copies with one thing replaced search elsewhere."""

    job: Job
    cluster: Cluster
    stack: Stack | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    allowed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Choices of a layout by name, where a framework has not all of them."""
    objective: Objective = "time"
    goals: Goals = field(default_factory=Goals)
    best_mfu: float | None = None
    """The highest that was published for such a job on such devices."""
    quick: bool = False
    """Look only among layouts that rest on what published runs tested."""

    def __post_init__(self) -> None:
        if self.quick and (self.fixed or self.allowed):
            raise InputError("--quick cannot be combined with --fix or --from")

    @property
    def used_stack(self) -> Stack:
        return self.stack or usual_stack(self.cluster.accelerator.vendor)

    @property
    def limits(self) -> Limits:
        return self.goals.limits(self.job, self.cluster.gpus)

    @property
    def _space(self) -> Space:
        if self.quick:
            return quick_space(self.job, self.cluster.gpus)
        return space_of(self.job, self.cluster.gpus, self.fixed, self.allowed)

    def run(
        self, top: int = 1, progress: Progress | None = None, *, interruptible: bool = False
    ) -> Plans:
        return plan(
            self.job,
            self.cluster,
            self.stack,
            space=self._space,
            objective=self.objective,
            top=top,
            limits=self.limits,
            progress=progress,
            best_mfu=self.best_mfu,
            interruptible=interruptible,
        )

    def why_nothing(self, answer: Plans) -> str:
        """Why the search found no plan, with the nearest size that would do."""
        if answer.count.evaluated:
            return f"no layout keeps the limits: {self._why_too_slow(answer)}"
        if answer.smallest_bytes == float("inf"):
            reasons = sorted(answer.count.pruned.items(), key=lambda item: -item[1])
            return f"no layout is possible: {reasons[0][0]}"
        return f"nothing fits: {why_no_plan(answer, self.job, self.cluster, self.limits)}"

    def _why_too_slow(self, answer: Plans) -> str:
        """The whole training of the fastest layout, where time or money is what it misses."""
        step, tokens = self.limits.step_seconds, self.goals.tokens
        if step is None or tokens is None or answer.fastest_seconds <= step:
            return "all draw more than the power cap" + ("" if step is None else ", or are slower")
        steps = tokens / self.job.step_tokens
        in_time = math.isclose(steps * step, self.goals.deadline_seconds or 0.0)
        return (
            f"the fastest takes {format_seconds(steps * answer.fastest_seconds)} for all tokens, with "
            "everything it relies on one deviation worse; "
            f"{'the deadline allows' if in_time else 'the budget pays for'} "
            f"{format_seconds(steps * step)}"
        )

    def larger(self) -> tuple[int, Layout] | None:
        """The least number of GPUs, doubling, on which the job fits; None if layouts are narrowed."""
        if self.fixed or self.quick:
            return None
        return nearest_that_fits(self.job, self.cluster, self.used_stack, limits=self.limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedSize:
    """One size that was tried (GPUs, or sequences in a batch) and its best plan."""

    size: int
    goals: Goals
    plan: Plan | None
    """The best plan; None where nothing fits and keeps the limits."""


def try_gpu_counts(search: Search, counts: Sequence[int]) -> list[TriedSize]:
    by_count = [
        replace(search, cluster=resize_cluster(search.cluster, n)).run().plans for n in counts
    ]
    return [
        TriedSize(size=gpus, goals=search.goals, plan=plans[0] if plans else None)
        for gpus, plans in zip(counts, by_count, strict=True)
    ]


def doubled_counts(first: int, last: int) -> list[int]:
    """Numbers of GPUs from `first` to `last`, doubling."""
    if not 1 <= first <= last <= MAX_GPUS:
        raise InputError(f"--gpus {first}:{last}: between 1 and {MAX_GPUS:,}, growing")
    counts = [first]
    while counts[-1] * 2 <= last:
        counts.append(counts[-1] * 2)
    return counts


def fixed_fields(fix: Mapping[str, str | int]) -> dict[str, Any]:
    """Fields of a layout that the caller fixes, checked."""
    return dict(_fixed(name.replace("-", "_"), str(value)) for name, value in fix.items())


def _fixed(name: str, value: str) -> tuple[str, Any]:
    if name == "gpus" or name not in (*SIZES, *CHOICES):
        raise UnknownNameError("field of a layout", name, [*SIZES[1:], *CHOICES])
    if name in CHOICES:
        if value not in CHOICES[name]:
            raise UnknownNameError(name, value, CHOICES[name])
        return name, value
    if not value.isdecimal() or len(value) > 9 or not 1 <= int(value) <= MAX_GPUS:
        raise InputError(f"--fix {name}={shown(value)}: a whole number, 1 to {MAX_GPUS:,}")
    return name, int(value)
