"""Runs predicted by evidence that never saw their source, device, stack, or both together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from computeflow.prediction.evidence import SeenRun, evidence_for, learn, traits_of
from computeflow.prediction.evidence.maturity import Deviations
from computeflow.prediction.evidence.seen_runs import Traits
from computeflow.prediction.parameters import Parameters
from computeflow.prediction.published_runs import MeasuredRun, step_inputs_of
from computeflow.prediction.ranges import PredictionSpread
from computeflow.prediction.step import account_step

By = Literal["source", "device", "stack", "pair"]
_GROUPS: dict[By, Callable[[Traits], Hashable]] = {
    "device": lambda traits: traits.device,
    "stack": lambda traits: traits.stack,
    "pair": lambda traits: (traits.device, traits.stack),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Predictions of all cases, each without its own group (and always without its own source)."""

    log_ratios: NDArray[np.float64]
    """ln of measured over predicted time."""
    spreads: tuple[PredictionSpread, ...]

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Whether the measurement lies in the stated range."""
        low, high = np.log([spread.range for spread in self.spreads]).T
        return np.asarray((self.log_ratios >= low) & (self.log_ratios <= high))


def leave_out(
    cases: Sequence[MeasuredRun],
    runs: Sequence[SeenRun],
    parameters: Parameters,
    by: By = "source",
    deviations: Deviations | None = None,
) -> LeftOut:
    traits = [traits_of(case.job, case.cluster.accelerator, case.stack) for case in cases]
    outlooks, distances = [], []
    known = {}
    for case, own in zip(cases, traits, strict=True):
        group = _GROUPS[by](own) if by != "source" else None
        if (case.source, group) not in known:
            rest = [
                run
                for run in runs
                if run.source != case.source
                and (by == "source" or _GROUPS[by](run.traits) != group)
            ]
            known[case.source, group] = learn(rest, deviations), rest
        maturity, rest = known[case.source, group]
        outlooks.append(maturity.outlook(own))
        distances.append(evidence_for(own, rest).distance)
    inputs = step_inputs_of(cases)
    rates = np.array([outlook.rate for outlook in outlooks])
    step = account_step(replace(inputs, maturity=rates), parameters)
    measured = np.array([case.measured_seconds for case in cases])
    return LeftOut(
        log_ratios=np.log(measured / step.seconds),
        spreads=tuple(
            PredictionSpread(
                outlook=outlook,
                family=own.family,
                kind=own.kind,
                distance=distance,
                assumed=case.missing,
            )
            for case, own, outlook, distance in zip(cases, traits, outlooks, distances, strict=True)
        ),
    )
