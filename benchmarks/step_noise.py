"""The noise of real steps, as measured, and more of the same: `StepNoise`, `load_noise`, `draw`.

`benchmarks.measure_noise` writes `data/step_noise.json`. Of each source it keeps, by phase, how far a
rank's time lies from its median, in steps (quantiles: body and tail), and four correlations: over ranks
(what all of them have in common), over the phases of one step, and over time (fast and slow). `draw`
makes normal numbers with those correlations and reads the quantiles at them, a Gaussian copula.

Neglected: dependence of the tails beyond that of the body, and drifts of all ranks over more than
`measure_noise.WINDOW` steps, which on a shared machine are other people's work.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.special import ndtr

from computeflow import codec

Floats = NDArray[np.float64]
DATA = Path(__file__).parent / "data" / "step_noise.json"
PHASES = ("input", "forward", "backward", "optimizer", "host")
LEVELS = np.concatenate(
    [[0.0, 0.001, 0.005], np.linspace(0.01, 0.99, 99), [0.995, 0.998, 0.999, 0.9995, 1.0]]
)
"""Shares at which quantiles are kept."""
SLOW = 0.98
"""Correlation from step to step of the slow part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNoise:
    """Noise of one source; deviations are shares of a step without waits."""

    name: str
    source: str
    judging: bool
    """Whether it only judges, and is not looked at while rules are written."""
    ranks: int
    steps: int
    step_seconds: float
    """Median time of a step without waits."""
    phases: dict[str, float]
    """Median share of each phase."""
    quantiles: dict[str, list[float]]
    across_ranks: float
    across_phases: float
    slow_share: float
    """Share of the variance that changes slowly."""
    fast: float
    """Correlation from step to step of the rest."""
    rank_spread: float
    """Standard deviation of the ranks' own medians."""
    measured: dict[str, Any]
    """What is only reported: tail, autocorrelation, drift, pauses."""


def load_noise(path: Path = DATA) -> dict[str, StepNoise]:
    rows = codec.from_json(path.read_text(), str(path))["sources"]
    return {row["name"]: codec.decode(StepNoise, row, str(path)) for row in rows}


def draw(
    noise: StepNoise, ranks: int, steps: int, level: float, random: np.random.Generator
) -> Floats:
    """Deviations in shares of a step: ranks x steps x phases; `level` scales them."""
    phases = len(PHASES)
    shared, within = noise.across_ranks, noise.across_phases
    normal = np.zeros((ranks, steps, phases))
    for weight, shape in (
        (shared * within, (1, steps, 1)),
        (shared * (1 - within), (1, steps, phases)),
        ((1 - shared) * within, (ranks, steps, 1)),
        ((1 - shared) * (1 - within), (ranks, steps, phases)),
    ):
        if weight > 0:
            normal += np.sqrt(weight) * _in_time(noise, shape, random)
    share = ndtr(normal)
    deviation = np.empty_like(share)
    for place, name in enumerate(PHASES):
        deviation[:, :, place] = np.interp(share[:, :, place], LEVELS, noise.quantiles[name])
    return np.asarray(level * deviation)


def apart(step: Floats, window: int) -> float:
    """How far the median step of a rank lies from that of all, as a deviation over windows.

    This is what a rule sees that compares ranks: it is measured, and holds for what is drawn.
    """
    count = step.shape[1] // window
    medians = np.median(step[:, : count * window].reshape(len(step), count, window), axis=2)
    return float(np.std(medians - np.mean(medians, axis=0)))


def _in_time(noise: StepNoise, shape: tuple[int, ...], random: np.random.Generator) -> Floats:
    """Standard normal numbers that are correlated over the second axis as the source's steps are."""
    parts = ((noise.slow_share, SLOW), (1 - noise.slow_share, noise.fast))
    total = np.zeros(shape)
    for weight, keep in parts:
        if weight <= 0:
            continue
        fresh = random.standard_normal(shape)
        if keep:
            fresh[:, 1:] *= np.sqrt(1 - keep**2)
            fresh = lfilter([1.0], [1.0, -keep], fresh, axis=1)
        total += np.sqrt(weight) * fresh
    return total
