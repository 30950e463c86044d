"""A search as the command line asks for it: `Search`, its bounds, and what its options say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from computeflow.cli.output import Progress
from computeflow.cluster import Cluster
from computeflow.errors import InputError, UnknownNameError
from computeflow.planning import Limits, Plans, plan
from computeflow.planning.search import Objective
from computeflow.planning.space import Count
from computeflow.prediction.stack import Stack, usual_stack
from computeflow.workload import Job
from computeflow.workload.layout import CHOICES, SIZES


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What was asked of the whole training, turned into limits of a step."""

    tokens: float | None
    price: float | None
    deadline: float | None
    budget: float | None
    power_cap: float | None
    headroom: float

    def __post_init__(self) -> None:
        for name in ("tokens", "price", "deadline", "budget", "power_cap"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                option = name.replace("_", "-")
                raise InputError(f"--{option} {value:g}: above zero and finite")
        if (self.deadline or self.budget) and not self.tokens:
            raise InputError("--deadline and --budget need --tokens")
        if self.budget and not self.price:
            raise InputError("--budget needs --price")

    @property
    def narrow(self) -> bool:
        return any((self.deadline, self.budget, self.power_cap))

    def limits(self, gpus: int, job: Job, tokens: float | None) -> Limits:
        """What a deadline and a budget leave for a step of this job on so many GPUs."""
        days = [self.deadline] if self.deadline else []
        if self.budget and self.price:
            days.append(self.budget / self.price / gpus / 24)
        seconds = min(days) * 86400 / (tokens / job.step_tokens) if days and tokens else None
        return Limits(headroom=self.headroom, watts_per_gpu=self.power_cap, step_seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is looked for; `run` looks for it, on the cluster or on another one like it."""

    job: Job
    cluster: Cluster
    stack: Stack | None
    fixed: dict[str, Any]
    objective: Objective
    bounds: Bounds
    best_mfu: float | None
    """That anybody published for such a job on such devices."""

    @property
    def used_stack(self) -> Stack:
        return self.stack or usual_stack(self.cluster.accelerator.vendor)

    @property
    def limits(self) -> Limits:
        return self.bounds.limits(self.cluster.gpus, self.job, self.bounds.tokens)

    def run(self, top: int = 1) -> Plans:
        with Progress() as progress:

            def say(done: float, count: Count) -> None:
                text = f"{100 * done:3.0f} %, {count.evaluated:,} predicted; Ctrl-C: best so far"
                progress.say(text)

            return plan(
                self.job, self.cluster, self.stack, fixed=self.fixed, objective=self.objective,
                top=top, limits=self.limits, progress=say, best_mfu=self.best_mfu,
            )  # fmt: skip


def fixed_fields(fixes: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in fixes:
        name, equals, value = text.partition("=")
        name = name.replace("-", "_")
        if not equals or name == "gpus" or name not in (*SIZES, *CHOICES):
            raise UnknownNameError("field of a layout", name, [*SIZES[1:], *CHOICES])
        if name in CHOICES:
            if value not in CHOICES[name]:
                raise UnknownNameError(name, value, CHOICES[name])
            found[name] = value
        elif not value.isdecimal() or not 1 <= int(value) <= 10**6:
            raise InputError(f"--fix {text}: {name} is a whole number")
        else:
            found[name] = int(value)
    return found


def gpu_counts(text: str) -> list[int]:
    first, colon, last = text.partition(":")
    if not colon or not first.isdecimal() or not last.isdecimal():
        raise InputError(f"--gpus {text}: write FROM:TO (256:2048)")
    low, high = int(first), int(last)
    if not 1 <= low <= high <= 10**6:
        raise InputError(f"--gpus {text}: between 1 and a million, growing")
    counts = [low]
    while counts[-1] * 2 <= high:
        counts.append(counts[-1] * 2)
    return counts


def batch_sizes(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and 1 <= int(part) <= 10**9 for part in parts):
        raise InputError(f"--batches {text}: whole numbers with commas (512,1024,2048)")
    return [int(part) for part in parts]
