"""A site's common factor: what a few of its own measured steps say about all the others.

Runs of one source (a site, a release, a team's tuning) share a factor that no formula knows: about
half of the variance over unseen sources. A few measured steps estimate it. Start with `estimate`;
`computeflow.prediction.calibration.calibrate` makes a `SiteCalibration` of measured cases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from computeflow.errors import InputError
from computeflow.prediction.blocks import Floats

_NORMAL_90 = 1.2816
"""Quantile of the normal distribution: 80 % lie within so many deviations."""
_NORMAL_99 = 2.326


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Assumptions about any site before it measures; all in ln(measured / predicted)."""

    between: float = 0.10
    """Deviation of the sources' medians: 0.10 over a prototype's left-out sources, 0.09 (around
    zero) over the 11 packaged ones. The mean is zero: nothing is fitted to the packaged rows."""
    within: float = 0.10
    """Deviation of a source's runs around their own median: 0.08 to 0.10 for the prototype; over the
    packaged sources half lie under 0.10."""
    firmness: float = 3.0
    """Rows that `within` is worth against the spread of a site's own rows. A judgement."""
    huber: float = 1.345
    """Deviations beyond which a row pulls no harder: 95 % of the efficiency of the mean where the
    errors are normal (Huber 1964)."""
    release: float = 2.5
    """Deviations of `between` beyond which the prior pulls no harder: one row that far off is an
    outlier to it, two that agree are a site. A judgement."""


PRIOR = Prior()


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A site's ln factor, as its rows give it."""

    mean: float
    deviation: float
    """Standard deviation of the mean, after the rows."""
    spread: float
    """Standard deviation of single runs around the factor."""
    weights: tuple[float, ...]
    """Weights of the rows, 1 down to 0: a row far from the others counts for less."""

    @property
    def half_width(self) -> float:
        """Half the 80 % range of a further run's ln(measured / corrected prediction)."""
        return _NORMAL_90 * math.hypot(self.deviation, self.spread)


def estimate(log_ratios: Floats, prior: Prior = PRIOR) -> Estimate:
    """The shrunk, robust mean of ln(measured / predicted), and what it leaves open.

    The most probable mean under a prior around zero and errors around the mean, normal in the middle
    and exponential in the tails (Huber), by reweighting. Its deviation is that of the normal
    posterior at the final weights. The spread mixes `within` with the residuals, each cut at 2.5
    deviations.
    """
    ratios = np.asarray(log_ratios, np.float64)
    mean = float(np.median(ratios)) if len(ratios) else 0.0
    weights, precision = np.ones(len(ratios)), prior.between**-2
    for _ in range(200):
        before = mean
        off = np.maximum(np.abs(ratios - mean), 1e-12)
        weights = np.minimum(1.0, prior.huber * prior.within / off)
        held = min(1.0, prior.release * prior.between / max(abs(mean), 1e-12))
        precision = held * prior.between**-2 + float(weights.sum()) / prior.within**2
        mean = float(weights @ ratios) / prior.within**2 / precision
        if abs(mean - before) < 1e-9:
            break
    cut = np.minimum(np.abs(ratios - mean), 2.5 * prior.within)
    variance = (prior.firmness * prior.within**2 + float(cut @ cut)) / (
        prior.firmness + len(ratios)
    )
    return Estimate(
        mean=mean,
        deviation=precision**-0.5,
        spread=variance**0.5,
        weights=tuple(weights.tolist()),
    )


def disagree(log_ratios: Floats, prior: Prior = PRIOR) -> bool:
    """Whether rows scatter more than 99 % of sets with one common factor would.

    Chi-squared quantile by Wilson and Hilferty (1931). One row cannot disagree with itself.
    """
    free = len(log_ratios) - 1
    if free < 1:
        return False
    quantile = free * (1 - 2 / (9 * free) + _NORMAL_99 * math.sqrt(2 / (9 * free))) ** 3
    return float(np.var(log_ratios)) * (free + 1) > quantile * prior.within**2


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRow:
    row_id: str
    measured_seconds: float
    predicted_seconds: float
    """Predicted without the factor."""
    residual: float
    """ln of measured over predicted and corrected time."""
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteCalibration:
    """A site's factor from its measured steps, as the calibration file holds it."""

    factor: float
    """Multiplies the predicted step time."""
    deviation: float
    """Standard deviation of ln factor."""
    range: tuple[float, float]
    """Range around the corrected prediction: 80 % of the site's other runs lie within."""
    rows: tuple[SiteRow, ...]
    accelerators: tuple[str, ...]
    stacks: tuple[str, ...]
    """Stacks of the rows: the factor is about these; for other stacks the range stays generic."""
    disagree: bool = False
    """The rows scatter more than one factor explains."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Row to the reason why it was not used."""
    version: str = ""
    """Version of the predictor that the factor corrects."""
    made_on: str = ""

    def __post_init__(self) -> None:
        if not 0.05 <= self.factor <= 20:
            raise InputError(
                f"site: factor {self.factor:g} is not between 0.05 and 20: are the times seconds?"
            )
        if not 0 < self.deviation <= 1:
            raise InputError(f"site: deviation {self.deviation:g} is not between 0 and 1")
        low, high = self.range
        if not 0.05 <= low < 1 < high <= 20:
            raise InputError(f"site: range {low:g} to {high:g} does not enclose 1")
        if not self.rows or not self.accelerators:
            raise InputError("site: a factor without the rows and accelerators it came from")
