"""Draws of uncertain inputs: the range of an answer over the ranges of all its inputs.

Half of the draws of an input lie under its middle and half above, evenly in logarithms (evenly
where an end is zero). Draws are a Latin hypercube, so that few of them cover much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from computeflow.simulation.conditions import Input, change_conditions
from computeflow.simulation.run_inputs import RunInputs


def draw_conditions(
    run: RunInputs, rows: Mapping[str, Input], *, count: int, seed: int = 0
) -> list[RunInputs]:
    """So many runs, each with its own value for every input whose ends differ."""
    wide = [row for row in rows.values() if row.low < row.high]
    quantiles = latin(len(wide), count, seed)
    runs = []
    for number in range(count):
        values = {
            row.name: quantile(row, float(quantiles[index, number]))
            for index, row in enumerate(wide)
        }
        runs.append(replace(run, conditions=change_conditions(run.conditions, values)))
    return runs


def latin(inputs: int, count: int, seed: int) -> np.ndarray:
    """A Latin hypercube: each input visits every `count`-th part of its range once."""
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, count, inputs])))
    rows = [(random.permutation(count) + random.random(count)) / count for _ in range(inputs)]
    return np.array(rows).reshape(inputs, count)


def latin_of(name: str, count: int, seed: int) -> np.ndarray:
    """A row of a Latin hypercube that is the input's own: other inputs do not move it."""
    words = np.frombuffer(name.encode(), dtype=np.uint8).tolist()
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, count, *words])))
    return np.asarray((random.permutation(count) + random.random(count)) / count)


def quantile(row: Input, at: float) -> float:
    if at < 0.5:
        return _between(row.low, row.value, 2 * at)
    return _between(row.value, row.high, 2 * at - 1)


def _between(low: float, high: float, part: float) -> float:
    if low <= 0:
        return low + part * (high - low)
    return low * math.exp(part * math.log(high / low))


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = (float(v) for v in np.percentile(np.asarray(values), (10, 50, 90)))
    return low, middle, high
