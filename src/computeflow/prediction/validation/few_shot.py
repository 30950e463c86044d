"""How much a few rows of a source help to predict its others: the use of `calibrate`, scored."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from computeflow.prediction.blocks import Floats
from computeflow.prediction.calibration.calibrate import predicted_seconds
from computeflow.prediction.calibration.measured_hardware import Calibration
from computeflow.prediction.calibration.site import PRIOR, Prior, estimate
from computeflow.prediction.evidence import seen_runs
from computeflow.prediction.parameters import Parameters
from computeflow.prediction.published_runs import MeasuredRun
from computeflow.prediction.validation.leave_out import leave_out


@dataclass(frozen=True, slots=True, kw_only=True)
class FewShot:
    """Errors on the rows that were not drawn; every source weighs by its number of rows."""

    rows: int
    """Rows drawn to calibrate on."""
    sources: int
    mape: float
    median_ape: float
    in_range: float
    """Share of the measurements inside the stated 80 % range."""
    width: float
    """Mean high over low end of that range, less 1."""


def few_shot(
    cases: Sequence[MeasuredRun],
    parameters: Parameters,
    calibration: Calibration | None = None,
    *,
    counts: Sequence[int] = (0, 1, 2, 3, 5),
    least_rows: int = 6,
    draws: int = 200,
    seed: int = 0,
    prior: Prior = PRIOR,
) -> list[FewShot]:
    """For each count: so many rows drawn of every source, its other rows predicted.

    All draws where there are at most `draws`, else `draws` random ones. Count 0 is the prediction
    without a factor, in its generic range.
    """
    found = leave_out(cases, seen_runs(), parameters)
    ratios, ranges = found.log_ratios, np.log([spread.range for spread in found.spreads])
    if calibration is not None:
        measured = np.array([case.measured_seconds for case in cases])
        ratios = np.log(measured / predicted_seconds(cases, parameters, calibration))
    names = np.array([case.source for case in cases])
    groups = [np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())]
    sources = [(ratios[rows], ranges[rows]) for rows in groups if len(rows) >= least_rows]
    generator = np.random.default_rng(seed)
    return [_scored(sources, count, draws, generator, prior) for count in counts]


def _scored(
    sources: list[tuple[Floats, Floats]],
    count: int,
    draws: int,
    generator: np.random.Generator,
    prior: Prior,
) -> FewShot:
    errors, inside, weights, widths = [], [], [], []
    for ratios, ranges in sources:
        drawn = _draws(len(ratios), count, draws, generator)
        for chosen in drawn:
            rest = np.delete(ratios, chosen)
            mean, low, high = _predicted(ratios[chosen], np.delete(ranges, chosen, axis=0), prior)
            errors.append(np.abs(np.exp(mean - rest) - 1))
            inside.append((rest - mean >= low) & (rest - mean <= high))
            weights.append(np.full(len(rest), len(ratios) / len(rest) / len(drawn)))
            widths.append(np.broadcast_to(np.exp(high - low) - 1, len(rest)))
    size, weight = np.concatenate(errors), np.concatenate(weights)
    return FewShot(
        rows=count,
        sources=len(sources),
        mape=float(np.average(size, weights=weight)),
        median_ape=_weighted_median(size, weight),
        in_range=float(np.average(np.concatenate(inside), weights=weight)),
        width=float(np.average(np.concatenate(widths), weights=weight)),
    )


def _predicted(
    ratios: Floats, generic: Floats, prior: Prior
) -> tuple[float, Floats | float, Floats | float]:
    """ln factor, and the ends of the range around it; the generic ones without any row."""
    if not len(ratios):
        return 0.0, generic[:, 0], generic[:, 1]
    estimated = estimate(ratios, prior)
    return estimated.mean, -estimated.half_width, estimated.half_width


def _draws(rows: int, count: int, most: int, generator: np.random.Generator) -> list[list[int]]:
    if math.comb(rows, count) <= most:
        return [list(chosen) for chosen in itertools.combinations(range(rows), count)]
    return [generator.choice(rows, count, replace=False).tolist() for _ in range(most)]


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])
