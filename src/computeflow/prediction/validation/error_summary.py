"""Errors of predictions of measured runs, each by evidence that never saw its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from computeflow.errors import InputError
from computeflow.prediction.calibration.calibrate import predicted_seconds, split_by_device
from computeflow.prediction.calibration.measured_hardware import Calibration
from computeflow.prediction.evidence import SeenRun, seen_runs
from computeflow.prediction.evidence.rests_on import CLASSES
from computeflow.prediction.parameters import Parameters
from computeflow.prediction.published_runs import MeasuredRun, step_inputs_of
from computeflow.prediction.step_inputs import take
from computeflow.prediction.validation.fitting import fit, log_errors
from computeflow.prediction.validation.leave_out import leave_out

_SCALES = (1, 8, 64, 512)
"""Most devices of a run, by class of scale."""


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
    width: float
    """Median high over low end of that range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedRow:
    row_id: str
    source: str
    measured_seconds: float
    predicted_seconds: float
    low_seconds: float
    high_seconds: float
    device: str
    stack: str
    kind: str
    evidence: str
    """Distance to what was seen without its own source (`evidence.rests_on.CLASSES`)."""
    scale: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    rows: tuple[ValidatedRow, ...]
    skipped: dict[str, str]
    """Row to the reason why it was not predicted."""
    summary: ErrorSummary
    by_evidence: dict[str, ErrorSummary]
    by_kind: dict[str, ErrorSummary]
    by_scale: dict[str, ErrorSummary]
    by_device: dict[str, ErrorSummary]
    by_stack: dict[str, ErrorSummary]
    by_source: dict[str, ErrorSummary]


def validate(
    cases: Sequence[MeasuredRun],
    skipped: dict[str, str],
    parameters: Parameters,
    calibration: Calibration | None = None,
    evidence: Sequence[SeenRun] | None = None,
) -> Validation:
    """Every run is predicted by evidence (the packaged one) without its own source. With a
    calibration, runs on other accelerators than its own are skipped.
    """
    cases, others = split_by_device(cases, calibration)
    if not cases:
        reasons = "; ".join(dict.fromkeys([*skipped.values(), *others.values()])) or "no rows"
        raise InputError(f"no row can be predicted: {reasons}")
    found = leave_out(cases, seen_runs() if evidence is None else evidence, parameters)
    measured = np.array([case.measured_seconds for case in cases])
    ranges = np.array([spread.range for spread in found.spreads])
    predicted = measured / np.exp(found.log_ratios)
    if calibration is not None:
        predicted = predicted_seconds(cases, parameters, calibration)
        own = [calibration.range_for(case.stack.name) for case in cases]
        ranges = np.array([mine or tuple(usual) for mine, usual in zip(own, ranges, strict=True)])
    rows = tuple(
        ValidatedRow(
            row_id=case.row_id,
            source=case.source,
            measured_seconds=case.measured_seconds,
            predicted_seconds=seconds,
            low_seconds=low * seconds,
            high_seconds=high * seconds,
            device=case.cluster.accelerator.name,
            stack=case.stack.name,
            kind=spread.kind,
            evidence=spread.distance,
            scale=_scale(case.layout.gpus),
        )
        for case, spread, seconds, (low, high) in zip(
            cases, found.spreads, predicted.tolist(), ranges.tolist(), strict=True
        )
    )
    errors = np.log(predicted / measured)

    def by(name: str) -> dict[str, ErrorSummary]:
        return _grouped([getattr(row, name) for row in rows], errors, ranges)

    distances = by("evidence")
    return Validation(
        rows=rows,
        skipped={**skipped, **others},
        summary=summarise(errors, ranges),
        by_evidence={name: distances[name] for name in CLASSES if name in distances},
        by_kind=by("kind"),
        by_scale=dict(sorted(by("scale").items(), key=lambda item: _first_number(item[0]))),
        by_device=by("device"),
        by_stack=by("stack"),
        by_source=by("source"),
    )


def _scale(gpus: int) -> str:
    lower = 0
    for most in _SCALES:
        if gpus <= most:
            return f"{most}" if most == lower + 1 else f"{lower + 1} to {most}"
        lower = most
    return f"{lower + 1} and more"


def _first_number(text: str) -> int:
    return int(text.split()[0])


def summarise(log_errors: NDArray[np.float64], ranges: NDArray[np.float64]) -> ErrorSummary:
    """`ranges` holds the low and high end for each error, over the prediction."""
    low, high = ranges.T
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
        width=float(np.median(high / low)),
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
