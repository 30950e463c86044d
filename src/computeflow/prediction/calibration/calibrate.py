"""`calibrate`: measured steps of a site to the factor that its other steps will have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from computeflow import __version__
from computeflow.errors import InputError
from computeflow.prediction.batch import of_job
from computeflow.prediction.calibration.measured import Calibration
from computeflow.prediction.calibration.site import PRIOR, Prior, Site, SiteRow, disagree, estimate
from computeflow.prediction.cases import Case, batch_of
from computeflow.prediction.kinds import Floats
from computeflow.prediction.parameters import Parameters
from computeflow.prediction.step import account_step
from computeflow.workload import Layouts


def calibrate(
    cases: Sequence[Case],
    skipped: Mapping[str, str],
    parameters: Parameters,
    calibration: Calibration | None = None,
    *,
    made_on: str = "",
    prior: Prior = PRIOR,
) -> Site:
    """The site's factor over predictions that use the calibration's figures, but no earlier factor."""
    bare = replace(calibration, site=None) if calibration is not None else None
    usable, others = split_by_device(cases, bare)
    left_out = {**skipped, **others}
    if not usable:
        reasons = "; ".join(dict.fromkeys(left_out.values())) or "no rows"
        raise InputError(f"no row can be used: {reasons}")
    predicted = predicted_seconds(usable, parameters, bare)
    measured = np.array([case.measured_seconds for case in usable])
    ratios = np.log(measured / predicted)
    found = estimate(ratios, prior)
    return Site(
        factor=float(np.exp(found.mean)),
        deviation=found.deviation,
        range=(float(np.exp(-found.half_width)), float(np.exp(found.half_width))),
        rows=tuple(
            SiteRow(
                row_id=case.row_id,
                measured_seconds=case.measured_seconds,
                predicted_seconds=seconds,
                residual=ratio - found.mean,
                weight=weight,
            )
            for case, seconds, ratio, weight in zip(
                usable, predicted.tolist(), ratios.tolist(), found.weights, strict=True
            )
        ),
        accelerators=tuple(dict.fromkeys(case.cluster.accelerator.name for case in usable)),
        stacks=tuple(dict.fromkeys(case.stack.name for case in usable)),
        disagree=disagree(ratios, prior),
        skipped=left_out,
        version=__version__,
        made_on=made_on,
    )


def predicted_seconds(
    cases: Sequence[Case], parameters: Parameters, calibration: Calibration | None = None
) -> Floats:
    """Step times of the cases; with a calibration all must be on its accelerators."""
    if calibration is None:
        return account_step(batch_of(cases), parameters).seconds
    seconds = []
    for case in cases:  # one by one: attention is calibrated for a job's head dimension
        batch = of_job(case.job, case.cluster, Layouts.of([case.layout]), case.stack)
        step = calibration.account_step(batch, parameters, case.cluster.accelerator)
        seconds.append(float(step.seconds[0]))
    return np.array(seconds)


def split_by_device(
    cases: Sequence[Case], calibration: Calibration | None
) -> tuple[list[Case], dict[str, str]]:
    """Cases that the calibration speaks of, and why not the others."""
    if calibration is None:
        return list(cases), {}
    kept, others = [], {}
    meant = ", ".join(calibration.accelerators)
    for number, case in enumerate(cases, start=1):
        name = case.cluster.accelerator.name
        if name in calibration.accelerators:
            kept.append(case)
        else:
            others[case.row_id or f"row {number}"] = f"on {name}, not {meant}"
    return kept, others
