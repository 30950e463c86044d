"""Gains of `improve` against measured ones: published runs of one source that differ in one option.

A pair goes the way that is predicted to gain at least what `improve` asks of a change. Predictions know
these runs through factors of device, stack and precision, which two runs of a pair share unless
precision is what differs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from statistics import median

from computeflow.catalog import load_catalog
from computeflow.planning.explain import changed_fields
from computeflow.planning.exports.config_formats import Setup
from computeflow.planning.improvement import EIGHTY, MIN_GAIN, UNDESCRIBED, gain_ranges
from computeflow.prediction.published_runs import TABLES, MeasuredRun, read_cases
from computeflow.workload import Job

SHARE = 0.8
STEP = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGain:
    """One option changed between two measured runs, and what it was predicted to gain."""

    option: str
    before: MeasuredRun
    after: MeasuredRun
    predicted: float
    deviation: float
    """Uncertainty of the predicted gain, by the predictor's figures alone."""

    @property
    def source(self) -> str:
        return self.before.source

    @property
    def measured(self) -> float:
        return 1 - self.after.measured_seconds / self.before.measured_seconds

    def is_held(self, undescribed: float) -> bool:
        """Whether the measured gain lies in the 80 % range of the predicted one."""
        beyond = (1 - self.predicted) * undescribed
        return abs(self.measured - self.predicted) <= EIGHTY * math.hypot(self.deviation, beyond)


def measured_gains() -> list[MeasuredGain]:
    facts = load_catalog()
    cases = [case for table in TABLES for case in read_cases(table.read_text(), facts)[0]]
    pairs = [
        (option, *runs)
        for option, one, other in _pairs(_repeats_once(cases))
        for runs in ((one, other), (other, one))
    ]
    setups = [_setup(run) for _, before, after in pairs for run in (before, after)]
    ranges = gain_ranges(setups, undescribed=0.0)[::2]
    return [
        MeasuredGain(
            option=option,
            before=before,
            after=after,
            predicted=(low + high) / 2,
            deviation=(high - low) / 2 / EIGHTY,
        )
        for (option, before, after), (low, high) in zip(pairs, ranges, strict=True)
        if (low + high) / 2 >= MIN_GAIN
    ]


def _repeats_once(cases: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """Runs of one plan in one source as one, with the median of their steps."""
    groups: dict[object, list[MeasuredRun]] = defaultdict(list)
    for case in cases:
        if case.clear:
            plan = (case.layout, case.stack, case.job.precision)
            groups[_common(case), str(plan)].append(case)
    return [
        replace(same[0], measured_seconds=median(case.measured_seconds for case in same))
        for same in groups.values()
    ]


def _pairs(cases: Iterable[MeasuredRun]) -> Iterator[tuple[str, MeasuredRun, MeasuredRun]]:
    """Runs of one source and job that differ in one option, each pair once."""
    groups: dict[object, list[MeasuredRun]] = defaultdict(list)
    for case in cases:
        groups[_common(case)].append(case)
    for group in groups.values():
        for one, other in combinations(group, 2):
            if len(options := _options(one, other)) == 1:
                yield options[0], one, other


def _common(case: MeasuredRun) -> object:
    job, cluster = replace(case.job, precision="bf16"), case.cluster
    return (
        case.source,
        case.stack.name,
        cluster.accelerator.name,
        cluster.gpus,
        tuple(str(getattr(job, field.name)) for field in fields(Job)),
    )


def _options(one: MeasuredRun, other: MeasuredRun) -> list[str]:
    names = [*changed_fields(one.layout, other.layout), *changed_fields(one.stack, other.stack)]
    return names + (["precision"] if one.job.precision != other.job.precision else [])


def _setup(case: MeasuredRun) -> Setup:
    return Setup(job=case.job, cluster=case.cluster, layout=case.layout, stack=case.stack)


def held_share(gains: Sequence[MeasuredGain], undescribed: float) -> float:
    """Share of the measured gains in their ranges, every source weighing the same."""
    by_source: dict[str, list[bool]] = defaultdict(list)
    for gain in gains:
        by_source[gain.source].append(gain.is_held(undescribed))
    return sum(sum(held) / len(held) for held in by_source.values()) / len(by_source)


def undescribed_deviation(gains: Sequence[MeasuredGain]) -> float:
    """The least deviation with which 80 % of the measured gains lie in their ranges."""
    steps = (n * STEP for n in range(500))
    return next(deviation for deviation in steps if held_share(gains, deviation) >= SHARE)


def left_out_share(gains: Sequence[MeasuredGain]) -> float:
    """As `held_share`, each source with the deviation that the others give."""
    shares = []
    for source in {gain.source for gain in gains}:
        own = [gain for gain in gains if gain.source == source]
        others = [gain for gain in gains if gain.source != source]
        shares.append(held_share(own, undescribed_deviation(others)))
    return sum(shares) / len(shares)


def gain_lines(gains: Sequence[MeasuredGain]) -> list[str]:
    """Part of the report."""
    sources = len({gain.source for gain in gains})
    by_option: dict[str, list[MeasuredGain]] = defaultdict(list)
    for gain in gains:
        by_option[gain.option].append(gain)
    rows = sorted(by_option.items(), key=lambda row: -len(row[1]))
    return [
        "## Predicted gains against measured ones",
        "",
        f"{len(gains)} pairs of published runs, of {sources} sources, that differ in one option; each "
        "goes the way that is predicted to gain 2 % or more. By the predictor's figures alone, "
        f"{held_share(gains, 0.0):.0%} of the measured gains lie in their 80 % ranges (each source "
        "weighs the same): what no figure describes is more. A deviation of "
        f"{undescribed_deviation(gains):.3f} of the step's logarithm gives 80 %; `improve` adds "
        f"{UNDESCRIBED}, and holds {held_share(gains, UNDESCRIBED):.0%}. With the deviation that the "
        f"other sources give, {left_out_share(gains):.0%} of a left-out source's lie in their ranges. "
        "Counts below are of pairs.",
        "",
        "| option | pairs | sources | gain in the range | by figures alone | a gain at all "
        "| predicted, median | measured, median | off by, median |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        *(_row(option, found) for option, found in [*rows, ("all", list(gains))]),
    ]


def _row(option: str, found: Sequence[MeasuredGain]) -> str:
    held = sum(gain.is_held(UNDESCRIBED) for gain in found)
    alone = sum(gain.is_held(0.0) for gain in found)
    gained = sum(gain.measured > 0 for gain in found)
    off = median(abs(gain.measured - gain.predicted) for gain in found)
    return (
        f"| {option} | {len(found)} | {len({gain.source for gain in found})} | {held} | {alone} "
        f"| {gained} | {median(gain.predicted for gain in found):.1%} "
        f"| {median(gain.measured for gain in found):.1%} | {off:.1%} |"
    )
