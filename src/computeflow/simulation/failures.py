"""How often jobs are interrupted, and by what: failure models from published runs and fleets.

A model has a rate per node-day, or several rates by the size of the job where one misses what was
measured, a rate of the job whatever its size, and the causes with their weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np

from computeflow.catalog.files import packaged_rows
from computeflow.catalog.rows import CatalogRow, normalise
from computeflow.errors import InputError, UnknownNameError

DATA = Path(__file__).with_name("data")
R = TypeVar("R", bound=CatalogRow)
_USUAL = "llama-3"
"""The model whose causes are taken for those that print none: the most detailed one of H100 nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCause(CatalogRow):
    kind: ClassVar[str] = "cause"
    inspected_seconds: float
    """Time until real-time checks notice it."""
    hardware: bool
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures(CatalogRow):
    kind: ClassVar[str] = "failures"
    per_node_day: float
    per_job_day: float = 0.0
    """Added to the rate per node, whatever the size of the job."""
    gpus: int | None = None
    """GPUs of the job or fleet on which it was measured."""
    by_gpus: tuple[tuple[int, float], ...] = ()
    """Sizes of jobs and their rates per node-day, where one rate misses what was measured."""
    causes: dict[str, float] = field(default_factory=dict)
    """Counts or shares; empty: those of `_USUAL`."""

    def __post_init__(self) -> None:
        super(Failures, self).__post_init__()
        if not (0 <= self.per_node_day <= 10 and 0 <= self.per_job_day <= 1000):
            raise InputError(
                f"{self.name}: failures are 0 to 10 per node-day, 0 to 1,000 per job-day"
            )
        for name, count in self.causes.items():
            if name not in causes():
                raise UnknownNameError("cause", name, causes())
            if not 0 <= count < math.inf:
                raise InputError(f"{self.name}: {count} failures by {name}")

    def at(self, gpus: int) -> Failures:
        """Rate for a job of so many GPUs, interpolated between measured sizes in logarithms."""
        if not self.by_gpus:
            return self
        sizes, rates = zip(*sorted(self.by_gpus), strict=True)
        rate = np.exp(np.interp(math.log(gpus), np.log(sizes), np.log(rates)))
        return replace(self, per_node_day=float(rate), gpus=gpus, by_gpus=())

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the failures, in the order of the causes."""
        counted = self.causes or failure_models()[_USUAL].causes
        total = math.fsum(counted.values())
        if not total:
            raise InputError(f"{self.name}: all causes have weight 0")
        return {name: counted.get(name, 0.0) / total for name in causes() if name != "preemption"}

    @property
    def mean_inspected_seconds(self) -> float:
        """Mean time until real-time checks notice a failure that is not silent."""
        loud = {n: s for n, s in self.shares.items() if not causes()[n].silent}
        total = math.fsum(loud.values()) or 1.0
        return math.fsum(s * causes()[n].inspected_seconds for n, s in loud.items()) / total


@cache
def causes() -> dict[str, FailureCause]:
    return {row.name: row for row in packaged_rows(DATA / "causes.toml", "cause", FailureCause)}


@cache
def failure_models() -> dict[str, Failures]:
    return {row.name: row for row in packaged_rows(DATA / "failures.toml", "failures", Failures)}


def find_failures(name: str) -> Failures:
    spelled = {
        normalise(s): row for row in failure_models().values() for s in (row.name, *row.aliases)
    }
    model = spelled.get(normalise(name))
    if model is None:
        raise UnknownNameError("failure model", name, failure_models())
    return model
