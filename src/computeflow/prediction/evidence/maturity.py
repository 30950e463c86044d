"""How mature a stack is on a device: learned from measured runs, with shrinkage.

The formulas know what a device can do and what a stack does in principle. What a stack reaches of it
depends on how long both have existed together. Each trait of a run (its device, generation, stack,
family of stacks, kind of training, and some of them together) shifts its step by an unknown factor;
stacks that no vendor tunes for its devices share one; and so do the runs of one source (the site, the
team). Their logarithms are zero before anything is seen, small as a rule and large now and then
(Student's t). The factors given the runs follow by least squares, reweighted until they settle, and
with them how sure they are: many runs of one source say less than a few of several, a small difference
is taken for chance, and a trait that nobody has seen keeps its whole deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from computeflow.catalog import Accelerator
from computeflow.files.parsing import parse_csv
from computeflow.files.reading import read_text
from computeflow.prediction.evidence.seen_runs import SeenRun, Traits, traits_of
from computeflow.prediction.stack import Stack
from computeflow.workload import Job

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Trait = tuple[str, str]
"""Name and value."""
PACKAGED = Path(__file__).with_name("factors.csv")
_ROUNDS = 8
_HEAVY, _SOURCE_HEAVY = 2.0, 4.0
"""Degrees of freedom of the factors of traits, and of sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviations:
    """Scales of ln factors, before anything is seen. Chosen on sources left out, with all of them in
    view; benchmarks/reports/unseen.md has what others give.
    """

    untuned: float = 0.10
    """Stacks that no vendor tunes for its devices."""
    trait: float = 0.004
    source: float = 0.12
    run: float = 0.08

    def scale(self, name: str) -> float:
        return self.untuned if name == _UNTUNED else self.trait


_TUNED = ("megatron", "neuron", "lab")
"""Families that a vendor tunes for its devices (lab is our own trainer, which measured our own): what
the formulas were made from."""
_UNTUNED = "untuned"
_KEYS: dict[str, Callable[[Traits], str]] = {
    _UNTUNED: lambda t: "" if t.family in _TUNED else "yes",
    "generation": lambda t: t.generation,
    "device": lambda t: t.device,
    "stack": lambda t: t.stack,
    "together": lambda t: f"{t.family} on {t.generation}",
    "young": lambda t: f"{t.family} on {t.generation}, {'new' if t.young else 'settled'}",
    "kind": lambda t: t.kind,
}
"""The value of each trait in a run; empty where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """ln of a factor, and what the runs leave open of it."""

    mean: float
    deviation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """ln of the step's time over the formulas', and what is open."""

    mean: float
    deviation: float
    """What the runs leave open of `mean`."""

    @property
    def rate(self) -> float:
        """Share of the formulas' speed that is expected."""
        return float(np.exp(-self.mean))


@dataclass(frozen=True, slots=True, kw_only=True)
class Maturity:
    """Factors of all traits, as the runs leave them."""

    factors: Mapping[Trait, Factor]
    deviations: Deviations

    def outlook(self, traits: Traits) -> Outlook:
        """The factors of a run's traits together; their variances add up, which is at most too much."""
        found = [self.factors.get(one) or self._unseen(one[0]) for one in _named(traits)]
        return Outlook(
            mean=sum(factor.mean for factor in found),
            deviation=math.hypot(*(factor.deviation for factor in found)),
        )

    def _unseen(self, name: str) -> Factor:
        return Factor(mean=0.0, deviation=_t_deviation(self.deviations.scale(name), _HEAVY))


def _named(traits: Traits) -> list[Trait]:
    values = ((name, key(traits)) for name, key in _KEYS.items())
    return [(name, value) for name, value in values if value]


def _t_deviation(scale: float, freedom: float) -> float:
    """Deviation of Student's t, cut where it has none: that of 2.5 degrees of freedom."""
    freedom = max(freedom, 2.5)
    return scale * math.sqrt(freedom / (freedom - 2))


def learn(runs: Sequence[SeenRun], deviations: Deviations | None = None) -> Maturity:
    before = deviations or Deviations()
    columns: dict[Trait, int] = {}
    alike: dict[tuple[Traits, str], int] = {}
    which = np.array([alike.setdefault((run.traits, run.source), len(alike)) for run in runs], int)
    named = [_named(traits) for traits, _ in alike]
    for one in chain.from_iterable(named):
        columns.setdefault(one, len(columns))
    count = len(columns)
    sources = {name: count + n for n, name in enumerate(dict.fromkeys(name for _, name in alike))}
    design = np.zeros((len(alike), count + len(sources)))
    for row, (_, source) in enumerate(alike):
        design[row, [*(columns[one] for one in named[row]), sources[source]]] = 1.0
    scales = np.full(design.shape[1], before.source)
    scales[:count] = [before.scale(name) for name, _ in columns]
    freedom = np.where(np.arange(design.shape[1]) < count, _HEAVY, _SOURCE_HEAVY)
    ratios = np.array([run.log_ratio for run in runs])
    mean, deviation = _posterior(design, which, ratios, scales, freedom, before.run)
    factors = {
        trait: Factor(mean=float(mean[n]), deviation=float(deviation[n]))
        for trait, n in columns.items()
    }
    return Maturity(factors=factors, deviations=before)


def _posterior(
    design: Floats, which: Ints, ratios: Floats, scale: Floats, freedom: Floats, run: float
) -> tuple[Floats, Floats]:
    """Mean and deviation of the factors of all columns. `design` has a row for all runs that are
    alike, `which` tells the row of each run.
    """
    precision, weight = scale**-2.0, np.full(len(ratios), run**-2.0)
    mean, covariance = np.zeros(len(scale)), np.diag(scale**2.0)
    rows = len(design)
    for _ in range(_ROUNDS):
        heavy = np.bincount(which, weight, rows)
        normal = (design * heavy[:, None]).T @ design + np.diag(precision)
        covariance = np.asarray(np.linalg.inv(normal), np.float64)
        mean = covariance @ (design.T @ np.bincount(which, weight * ratios, rows))
        off = np.abs(ratios - (design @ mean)[which]) / run
        weight = run**-2.0 / np.maximum(off / 2, 1.0)
        squares = mean**2 + np.diag(covariance)
        precision = (freedom + 1) / (freedom * scale**2 + squares)
    return mean, np.sqrt(np.diag(covariance))


@cache
def packaged_maturity(path: Path = PACKAGED) -> Maturity:
    """The factors of all packaged runs, as `python -m benchmarks.collect_cases` learned them."""
    factors = {
        (row["trait"], row["value"]): Factor(
            mean=float(row["log_factor"]), deviation=float(row["deviation"])
        )
        for _, row in parse_csv(read_text(path), str(path))
    }
    return Maturity(factors=factors, deviations=Deviations())


def outlook_of(job: Job, device: Accelerator, stack: Stack) -> Outlook:
    """What the packaged runs say of a job's stack on a device."""
    return packaged_maturity().outlook(traits_of(job, device, stack))
