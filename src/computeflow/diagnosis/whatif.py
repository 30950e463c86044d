"""The run, predicted: as it was seen, and with one thing changed. `Replay` is set on the recording.

The predictor's generic figures are first held against what the recording shows (matmuls, attention,
memory-bound kernels, optimizer, the host's speed), kind by kind. What a change is worth is then
predicted at the speeds that this machine has shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from computeflow.cluster import Cluster
from computeflow.diagnosis.inference import Inferred
from computeflow.ledger import Ledger
from computeflow.prediction import Parameters, Prediction, Stack, load_parameters, predict
from computeflow.prediction.batch import generation_of
from computeflow.prediction.calibration.factors import Factors
from computeflow.prediction.parts import Parts, step_parts
from computeflow.telemetry.traces.measured import RankMeasured
from computeflow.workload import Job, Layout

_PRODUCTS = ("aten::mm", "aten::addmm", "aten::_addmm_activation", "aten::_scaled_mm")
"""Operators whose products are of weights; the others with known FLOPs are attention's."""
HOST_LEAST = 0.02
"""Share of a step that the host must be late for its speed to show."""
HOST_BOUND = 0.1
"""Share beyond which kernels are too short to say how fast the device is: each takes some
microseconds, whatever it does."""
KERNEL_FACTORS = ("matmul", "attention", "other", "loss")
_USUAL = {"eager": (0.80, 1.01, 1.75, 1.91), "compiled": (0.82, 1.03, 2.70, 1.92)}
"""Their medians over the healthy bf16 recordings of our H200 that set thresholds
(benchmarks/reports/calibration.md): there, short steps let clocks rise over the sustained ones."""
_LOWEST, _HIGHEST = 0.1, 10.0
"""Of a factor: beyond, the recording is of something else than the predictor thinks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What differs from the run as it was seen; None: nothing."""

    stack: Stack | None = None
    layout: Layout | None = None
    job: Job | None = None
    compiled_host: float | None = None
    """Of an eager block's host time, what a compiled one takes; None: as the predictor has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    inferred: Inferred
    cluster: Cluster
    measured: Parts
    """Per step and device."""
    late_seconds: float
    """Per step: gaps because the host is slow, of no other root."""
    queued_seconds: float
    step_seconds: float
    recompute_seconds: float = 0.0
    factors: Factors = field(default_factory=Factors)
    """Measured over predicted."""

    def predict(self, change: Change | None = None) -> Prediction:
        wanted = change or Change()
        job = wanted.job or self.inferred.job
        layout = wanted.layout or self.inferred.layout
        stack = wanted.stack or self.inferred.stack
        parameters = self.factors.applied(load_parameters())
        if wanted.compiled_host is not None:
            parameters = parameters.replaced({"host_compiled": wanted.compiled_host})
        return predict(job, self.cluster, layout, stack, parameters)

    def ledger(self, change: Change | None = None) -> Ledger:
        return self.predict(change).ledger


def replay(rank: RankMeasured, inferred: Inferred, cluster: Cluster) -> Replay:
    """Of one rank, which stands for all."""
    steps = len(rank.steps)
    run = Replay(
        inferred=inferred,
        cluster=cluster,
        measured=_measured_parts(rank, inferred),
        late_seconds=sum(rank.signals.setbacks.get(n, 0.0) for n in ("launch", "optimizer"))
        / steps,
        queued_seconds=(rank.host.get("queued", 0.0) - rank.signals.optimizer_queued) / steps,
        step_seconds=sum(rank.step_seconds) / steps,
        recompute_seconds=rank.accounts.get("compute.recompute", 0.0) / steps,
    )
    return replace(run, factors=fit(run))


def _measured_parts(rank: RankMeasured, inferred: Inferred) -> Parts:
    """Seconds per step, in the predictor's kinds."""
    steps = len(rank.steps)
    own = [row for row in rank.signals.shapes if row.phase != "recompute"]
    matmul = sum(row.seconds for row in own if row.name in _PRODUCTS)
    written_out = inferred.stack.attention == "unfused"
    attention = sum(row.seconds for row in own if row.name not in _PRODUCTS)
    attention = rank.signals.unfused_attention if written_out else attention
    loss = rank.signals.loss_seconds
    other = rank.accounts.get("compute", 0.0) - matmul - attention - loss
    optimizer = rank.accounts.get("optimizer", 0.0) + rank.signals.optimizer_queued
    return Parts(
        matmul=matmul / steps,
        attention=attention / steps,
        other=max(other, 0.0) / steps,
        loss=loss / steps,
        optimizer=optimizer / steps,
    )


def fit(run: Replay) -> Factors:
    """Measured over predicted, kind by kind; the host's where it is late enough to show."""
    seen = run.inferred
    generic = step_parts(seen.job, run.cluster, seen.layout, seen.stack)
    rounds = seen.job.global_batch // (seen.layout.micro_batch * seen.layout.gpus)
    found = Factors(
        matmul=_ratio(run.measured.matmul, generic.matmul),
        attention=_ratio(run.measured.attention, generic.attention),
        other=_ratio(run.measured.other, generic.other),
        loss=_ratio(run.measured.loss, generic.loss),
        optimizer=_ratio(run.measured.optimizer, generic.optimizer),
        queued_seconds=run.queued_seconds / (rounds * seen.job.model.layers),
    )
    if run.recompute_seconds > 0:
        parameters = found.applied(load_parameters())
        again = predict(seen.job, run.cluster, seen.layout, seen.stack, parameters).ledger
        share = again.booked("compute.recompute") / again.gpus
        found = replace(found, recompute=_ratio(run.recompute_seconds, share))
    if run.late_seconds < HOST_LEAST * run.step_seconds:
        return found
    if run.late_seconds > HOST_BOUND * run.step_seconds:
        found = replace(found, **usual(run))
    return replace(found, host=_host_factor(run, found))


def usual(run: Replay) -> dict[str, Any]:
    """Factors of the kernels where a recording cannot tell its own."""
    hopper = generation_of(run.cluster.accelerator.name) == "hopper"
    half = run.inferred.job.precision == "bf16"
    known = _USUAL.get(run.inferred.stack.kernels) if hopper and half else None
    return dict(zip(KERNEL_FACTORS, known or (1.0,) * len(KERNEL_FACTORS), strict=True))


def _ratio(measured: float, predicted: float) -> float:
    if not (measured > 0 and predicted > 0):
        return 1.0
    return min(max(measured / predicted, _LOWEST), _HIGHEST)


def _host_factor(run: Replay, factors: Factors) -> float:
    """At which the predictor's host is as late as the measured one; it grows with the factor."""
    low, high = _LOWEST, _HIGHEST
    seen = run.inferred
    for _ in range(30):
        middle = (low * high) ** 0.5
        parameters: Parameters = replace(factors, host=middle, queued_seconds=0.0).applied(
            load_parameters()
        )
        found = predict(seen.job, run.cluster, seen.layout, seen.stack, parameters)
        late = found.ledger.booked("host") / found.ledger.gpus
        low, high = (middle, high) if late < run.late_seconds else (low, middle)
    return float((low * high) ** 0.5)
