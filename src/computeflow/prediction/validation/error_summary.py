"""Errors of predictions of measured runs, also by parameters that never saw their source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.prediction.calibration.calibrate import predicted_seconds, split_by_device
from computeflow.prediction.calibration.measured_hardware import Calibration
from computeflow.prediction.parameters import Parameters
from computeflow.prediction.published_runs import MeasuredRun, step_inputs_of
from computeflow.prediction.ranges import KNOWN, range_kind, time_range
from computeflow.prediction.step_inputs import take
from computeflow.prediction.validation.fitting import fit, log_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Errors of predicted over measured step time, as fractions."""

    n: int
    mape: float
    median_ape: float
    bias: float
    p90_ape: float
    in_range: float
    """Share of the measurements inside the stated 80 % range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedRow:
    row_id: str
    source: str
    measured_seconds: float
    predicted_seconds: float
    low_seconds: float
    high_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    rows: tuple[ValidatedRow, ...]
    skipped: dict[str, str]
    """Row to the reason why it was not predicted."""
    summary: ErrorSummary
    by_source: dict[str, ErrorSummary]
    by_kind: dict[str, ErrorSummary]


def validate(
    cases: Sequence[MeasuredRun],
    skipped: dict[str, str],
    parameters: Parameters,
    calibration: Calibration | None = None,
) -> Validation:
    """With a calibration, runs on other accelerators than its own are skipped."""
    cases, others = split_by_device(cases, calibration)
    if not cases:
        reasons = "; ".join(dict.fromkeys([*skipped.values(), *others.values()])) or "no rows"
        raise InputError(f"no row can be predicted: {reasons}")
    predicted = predicted_seconds(cases, parameters, calibration)
    errors = np.log(predicted / np.array([case.measured_seconds for case in cases]))
    ranges = np.array([_range(case, calibration) for case in cases])
    rows = tuple(
        ValidatedRow(
            row_id=case.row_id,
            source=case.source,
            measured_seconds=case.measured_seconds,
            predicted_seconds=seconds,
            low_seconds=low * seconds,
            high_seconds=high * seconds,
        )
        for case, seconds, (low, high) in zip(
            cases, predicted.tolist(), ranges.tolist(), strict=True
        )
    )
    return Validation(
        rows=rows,
        skipped={**skipped, **others},
        summary=summarise(errors, ranges),
        by_source=_grouped([case.source for case in cases], errors, ranges),
        by_kind=_grouped([range_kind(case.job) for case in cases], errors, ranges),
    )


def _range(case: MeasuredRun, calibration: Calibration | None) -> tuple[float, float]:
    own = calibration.range_for(case.stack.name) if calibration is not None else None
    return own or time_range(range_kind(case.job))


def summarise(
    log_errors: NDArray[np.float64], ranges: NDArray[np.float64] | None = None
) -> ErrorSummary:
    """`ranges` holds the low and high end for each error, over the prediction."""
    low, high = KNOWN["dense"] if ranges is None else ranges.T
    relative = np.exp(log_errors) - 1
    size = np.abs(relative)
    measured = np.exp(-log_errors)
    return ErrorSummary(
        n=len(relative),
        mape=float(size.mean()),
        median_ape=float(np.median(size)),
        bias=float(relative.mean()),
        p90_ape=float(np.percentile(size, 90)),
        in_range=float(((measured >= low) & (measured <= high)).mean()),
    )


def _grouped(
    names: Sequence[str], errors: NDArray[np.float64], ranges: NDArray[np.float64]
) -> dict[str, ErrorSummary]:
    groups = np.array(names)
    return {
        name: summarise(errors[groups == name], ranges[groups == name])
        for name in dict.fromkeys(names)
    }


def leave_one_source_out(cases: Sequence[MeasuredRun], start: Parameters) -> NDArray[np.float64]:
    """Log errors of every case, fitted without its source."""
    inputs = step_inputs_of(cases)
    sources = np.array([case.source for case in cases])
    errors = np.zeros(len(cases))
    for source in np.unique(sources):
        left, kept = np.flatnonzero(sources == source), np.flatnonzero(sources != source)
        fitted = fit([cases[i] for i in kept.tolist()], take(inputs, kept), start)
        own = [cases[i] for i in left.tolist()]
        errors[left] = log_errors(own, take(inputs, left), fitted)
    return errors
