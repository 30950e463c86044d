"""`calibrate`: measured steps of a site to the factor that its other steps will have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from computeflow import __version__
from computeflow.cluster import Cluster
from computeflow.errors import InputError
from computeflow.prediction.blocks import Floats
from computeflow.prediction.calibration.measured_hardware import Calibration
from computeflow.prediction.calibration.site import (
    PRIOR,
    Prior,
    SiteCalibration,
    SiteRow,
    disagree,
    estimate,
)
from computeflow.prediction.evidence import outlook_of
from computeflow.prediction.parameters import Parameters, load_parameters
from computeflow.prediction.published_runs import MeasuredRun, step_inputs_of
from computeflow.prediction.stack import Stack
from computeflow.prediction.step import account_step
from computeflow.prediction.step_inputs import of_job
from computeflow.workload import Job, Layout, Layouts

_FARTHEST = 3.0
"""Times that a step may differ from its prediction before it is taken for another job: a judgement."""


def calibrate(
    cases: Sequence[MeasuredRun],
    skipped: Mapping[str, str],
    parameters: Parameters,
    calibration: Calibration | None = None,
    *,
    made_on: str = "",
    prior: Prior = PRIOR,
) -> SiteCalibration:
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
    estimated = estimate(ratios, prior)
    return SiteCalibration(
        factor=float(np.exp(estimated.mean)),
        deviation=estimated.deviation,
        range=(float(np.exp(-estimated.half_width)), float(np.exp(estimated.half_width))),
        rows=tuple(
            SiteRow(
                row_id=case.row_id,
                measured_seconds=case.measured_seconds,
                predicted_seconds=seconds,
                residual=ratio - estimated.mean,
                weight=weight,
            )
            for case, seconds, ratio, weight in zip(
                usable, predicted.tolist(), ratios.tolist(), estimated.weights, strict=True
            )
        ),
        accelerators=tuple(dict.fromkeys(case.cluster.accelerator.name for case in usable)),
        stacks=tuple(dict.fromkeys(case.stack.name for case in usable)),
        disagree=disagree(ratios, prior),
        skipped=left_out,
        version=__version__,
        made_on=made_on,
    )


def with_measured_step(
    job: Job,
    cluster: Cluster,
    layout: Layout,
    stack: Stack,
    seconds: float,
    calibration: Calibration | None = None,
) -> Calibration:
    """The calibration with the site's factor of one measured step."""
    if not 0 < seconds < math.inf:
        raise InputError(f"a measured step of {seconds:g} s: must be above zero and finite")
    case = MeasuredRun(
        row_id="measured",
        source="",
        job=job,
        cluster=cluster,
        layout=layout,
        stack=stack,
        measured_seconds=seconds,
        missing=(),
    )
    site = calibrate([case], {}, load_parameters(), calibration)
    predicted = site.rows[0].predicted_seconds
    if not 1 / _FARTHEST < seconds / predicted < _FARTHEST:
        raise InputError(
            f"a measured step of {seconds:g} s is {seconds / predicted:.2g} times the predicted "
            f"{predicted:.3g} s: no site differs by as much; check the unit, the layout and the stack, "
            "or audit a recording of it"
        )
    own = calibration or Calibration(
        where="the measured step", accelerators=(cluster.accelerator.name,)
    )
    return replace(own, site=site)


def predicted_seconds(
    cases: Sequence[MeasuredRun], parameters: Parameters, calibration: Calibration | None = None
) -> Floats:
    """Step times of the cases; with a calibration all must be on its accelerators."""
    rates = [outlook_of(c.job, c.cluster.accelerator, c.stack).rate for c in cases]
    if calibration is None:
        matured = replace(step_inputs_of(cases), maturity=np.array(rates))
        return account_step(matured, parameters).seconds
    seconds = []
    for case, rate in zip(cases, rates, strict=True):  # attention depends on a job's head dimension
        inputs = of_job(case.job, case.cluster, Layouts.of([case.layout]), case.stack, rate)
        step = calibration.account_step(inputs, parameters, case.cluster.accelerator)
        seconds.append(float(step.seconds[0]))
    return np.array(seconds)


def split_by_device(
    cases: Sequence[MeasuredRun], calibration: Calibration | None
) -> tuple[list[MeasuredRun], dict[str, str]]:
    """Cases on the calibration's accelerators, and why the others are skipped."""
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
