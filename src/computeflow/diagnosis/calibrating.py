"""A recording to a calibration file's content: `calibration_data`.

The predictor's factors as this recording shows them, with where they come from. What it does not show
is left out, and said.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from computeflow.diagnosis.case import Case
from computeflow.errors import InputError
from computeflow.prediction.calibration.factors import Factors
from computeflow.prediction.calibration.file import SCHEMA

PROFILED_HOST = 1.49
"""How much longer a host takes to launch under the profiler: the median of our five launch-bound
recordings on the H200, 1.25 to 1.79 times (docs/diagnosis.md)."""
_LEAST = 0.02
"""Share of a step below which a kind of work is too little to be measured."""


def calibration_data(case: Case) -> dict[str, Any]:
    if case.replay is None:
        raise InputError(
            f"--calibrate: the recording does not say what was run; it needs {case.why_not}"
        )
    run, accelerator = case.replay, case.audit.accelerator
    assert accelerator is not None
    factors, left_out = supported(case)
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
    }


def supported(case: Case) -> tuple[Factors, list[str]]:
    """The factors that the recording supports, and why the others are left at 1."""
    assert case.replay is not None
    run = case.replay
    factors, left_out = run.factors, []
    parts = run.measured
    for name in ("matmul", "attention", "other", "loss", "optimizer"):
        if getattr(parts, name) < _LEAST * run.step_seconds:
            factors = replace(factors, **{name: 1.0})
            left_out.append(f"{name}: under {_LEAST:.0%} of the step")
    if factors.host == 1.0:
        left_out.append("host: it is never late here")
    else:
        factors = replace(factors, host=max(factors.host / PROFILED_HOST, 0.1))
    shared = _communication(case)
    factors = replace(factors, **shared)
    if not shared:
        left_out.append("links and overlap: no communication with a known expectation")
    return factors, left_out


def _communication(case: Case) -> dict[str, float]:
    """Of all transfers, measured over predicted; and the share of the backward pass that hides them."""
    assert case.replay is not None
    rank = case.first
    if not len(rank.collectives.start):
        return {}
    busy = float((rank.collectives.end - rank.collectives.start).sum()) / 1e9 / case.steps
    exposed = sum(s for n, s in rank.accounts.items() if n.startswith("comm")) / case.steps
    predicted = case.replay.predict().ledger
    expected = predicted.booked("comm") / predicted.gpus
    if not (exposed > _LEAST * case.replay.step_seconds and expected > 0 and busy > 0):
        return {}
    inside = case.replay.inferred.layout.gpus <= (case.replay.cluster.node_devices or 8)
    ratio = min(max(exposed / expected, 0.05), 20.0)
    return {"link" if inside else "network": ratio}
