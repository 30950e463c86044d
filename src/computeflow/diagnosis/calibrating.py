"""A recording as the content of a calibration file: `calibration_data`.

The predictor's factors as measured in this recording, with their source. What it does not show is left
out, and listed.
"""

from __future__ import annotations

import statistics
from dataclasses import fields, replace
from typing import Any

import numpy as np

from computeflow.diagnosis.predicted_gains import HOST_BOUND, KERNEL_FACTORS, MIN_LATE_SHARE
from computeflow.diagnosis.trace_case import TraceCase
from computeflow.errors import InputError
from computeflow.prediction.calibration.factors import Factors
from computeflow.prediction.calibration.file import SCHEMA
from computeflow.telemetry.traces.rank_measurements import OPERATIONS

_PROFILED_HOST = 1.49
"""How much longer a host takes to launch under the profiler: the median of our five launch-bound
recordings on the H200, 1.25 to 1.79 times (docs/diagnosis.md)."""
_MIN_SHARE = 0.02
"""Share of a step below which a kind of work is too little to be measured."""
_LARGE_BYTES = 1 << 20
"""Smaller messages are dominated by latency."""
_MAX_MESSAGES = 200


def calibration_data(case: TraceCase) -> dict[str, Any]:
    if case.replay is None:
        raise InputError(
            f"--calibrate: the recording does not say what was run; it needs {case.why_not}"
        )
    run, accelerator = case.replay, case.audit.accelerator
    assert accelerator is not None
    factors, left_out = supported_factors(case)
    links = _transfer_rates(case)
    if not links:
        left_out.append("links: no messages of known size with every rank of their group recorded")
    return {
        "schema": SCHEMA,
        "provenance": {
            "accelerator": accelerator.name,
            "device": case.first.device,
            "made_from": [rank.source for rank in case.ranks],
            "window": case.ledger.window.label,
            "window_seconds": case.ledger.wall_seconds,
            "job": run.inferred.text,
            "stack": f"{run.inferred.stack.kernels} kernels, {run.inferred.stack.attention} attention",
            "left_out": left_out,
        },
        "factors": {
            field.name: getattr(factors, field.name)
            for field in fields(factors)
            if getattr(factors, field.name) != field.default
        },
        "collectives": links,
    }


def supported_factors(case: TraceCase) -> tuple[Factors, list[str]]:
    """Factors that the recording supports, and the reasons why others stay at 1."""
    assert case.replay is not None
    run = case.replay
    stack = run.inferred.stack
    factors = replace(
        run.factors,
        precision=run.inferred.job.precision,
        kernels=stack.kernels,
        attention_kernel=stack.attention,
    )
    left_out = ["overlap: not fitted from recordings"]
    late = run.late_seconds / run.step_seconds
    for name in (*KERNEL_FACTORS, "optimizer"):
        unseen: dict[str, Any] = {name: 1.0}
        if getattr(run.measured, name) < _MIN_SHARE * run.step_seconds:
            factors = replace(factors, **unseen)
            left_out.append(f"{name}: under {100 * _MIN_SHARE:.0f} % of the step")
        elif late > HOST_BOUND and name in KERNEL_FACTORS:
            factors = replace(factors, **unseen)
            left_out.append(
                f"{name}: launches are late for {100 * late:.0f} % of the step, its kernels are short"
            )
    if late < MIN_LATE_SHARE:
        left_out.append(
            f"host: late for {100 * late:.1f} % of the step, too little to tell its speed"
        )
    else:
        factors = replace(factors, host=max(factors.host / _PROFILED_HOST, 0.1))
    return factors, left_out


def _transfer_rates(case: TraceCase) -> list[dict[str, Any]]:
    """Bytes per second of the largest messages, by operation and group size.

    The shortest duration over all ranks is the transfer: the last rank to arrive does not wait. Groups
    with a missing rank are ignored.
    """
    lengths: dict[tuple[int, str, int, int], list[float]] = {}
    for rank in case.ranks:
        collectives = rank.collectives
        counted: dict[tuple[int, str, int], int] = {}
        for row in np.flatnonzero(
            (collectives.bytes >= _LARGE_BYTES) & (collectives.operation >= 0)
        ):
            key = (
                int(collectives.operation[row]),
                rank.groups[collectives.group[row]],
                int(collectives.bytes[row]),
            )
            number = counted[key] = counted.get(key, 0) + 1
            if number <= _MAX_MESSAGES:
                taken = float(collectives.end[row] - collectives.start[row]) / 1e9
                lengths.setdefault((*key, number), []).append(taken)
    sizes = {
        name: size for r in case.ranks for name, size in zip(r.groups, r.group_sizes, strict=True)
    }
    rates: dict[tuple[int, int], list[float]] = {}
    for (operation, group, size, _), values in lengths.items():
        if sizes[group] >= 2 and len(values) == sizes[group] and min(values) > 0:
            rates.setdefault((operation, sizes[group]), []).append(size / min(values))
    return [
        {
            "operation": OPERATIONS[operation],
            "ranks": ranks,
            "alpha_seconds": 0.0,
            "bytes_per_second": statistics.median(values),
        }
        for (operation, ranks), values in sorted(rates.items())
    ]
