"""Does the predictor choose well? Regret: how much slower than the measured best its choices were.

A group is one model on so many GPUs with one global batch, measured in several layouts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.catalog.parameters import count_block
from computeflow.prediction.published_runs import MeasuredRun

MIN_LAYOUTS = 3
"""Fewest layouts in a group; with fewer there is nothing to choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Means over groups: (best of the first k) / (measured best) - 1."""

    groups: int
    layouts: int
    first: float
    best_of_three: float
    best_of_five: float
    worst_first: float


def regret(cases: Sequence[MeasuredRun], predicted: NDArray[np.float64]) -> Regret:
    measured = np.array([case.measured_seconds for case in cases])
    groups: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        groups[case.job.model.name, case.layout.gpus, case.job.global_batch].append(index)
    chosen = [np.array(indices) for indices in groups.values() if len(indices) >= MIN_LAYOUTS]
    lost = np.array([_lost(measured[g], predicted[g]) for g in chosen]).reshape(-1, 3)
    first, three, five = lost.mean(axis=0).tolist() if len(lost) else (0.0, 0.0, 0.0)
    return Regret(
        groups=len(chosen),
        layouts=sum(len(group) for group in chosen),
        first=first,
        best_of_three=three,
        best_of_five=five,
        worst_first=float(lost[:, 0].max()) if len(lost) else 0.0,
    )


def _lost(measured: NDArray[np.float64], predicted: NDArray[np.float64]) -> list[float]:
    """Loss of the best of the first 1, 3 and 5 by prediction, against the best of the group."""
    ranked = measured[np.argsort(predicted, kind="stable")]
    return [ranked[:k].min() / ranked.min() - 1 for k in (1, 3, 5)]


def without_stall(cases: Sequence[MeasuredRun], factor: float = 2.0) -> list[MeasuredRun]:
    """Cases that are no more than `factor` slower, for their work, than the best of their model.

    The rule knows measurements and arithmetic only, no prediction: GPU-seconds per micro-batch and unit
    of work of the slowest stage (its layers, and the head as the layers that it weighs), the pipeline's
    fill counted as work. The best is sought among all GPU counts and layouts of the model whose tensor
    parallelism stays in a node; wider tensor parallelism is compared with its own degree.
    """
    spent = [_gpu_seconds_per_work(case) for case in cases]
    kinds = [(case.job.model.name, _width(case)) for case in cases]
    least: dict[tuple[str, int], float] = {}
    for kind, seconds in zip(kinds, spent, strict=True):
        least[kind] = min(least.get(kind, seconds), seconds)
    return [
        case
        for case, kind, seconds in zip(cases, kinds, spent, strict=True)
        if seconds <= factor * least[kind]
    ]


def _width(case: MeasuredRun) -> int:
    """Group of a case: 0 inside a node, else the degree of tensor parallelism."""
    return 0 if case.layout.tp <= case.cluster.domain else case.layout.tp


def _gpu_seconds_per_work(case: MeasuredRun) -> float:
    layout, model = case.layout, case.job.model
    dp = layout.gpus // (layout.tp * layout.pp * layout.cp)
    rounds = case.job.global_batch // (dp * layout.micro_batch) + layout.pp - 1
    head = model.vocab * model.hidden / count_block(model, model.blocks[0]).active
    work = rounds * layout.micro_batch * (model.layers / layout.pp + head)
    return case.measured_seconds * layout.tp / work
