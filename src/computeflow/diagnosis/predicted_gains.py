"""`PredictedRun`: the run as predicted, unchanged and with one change; fitted to the recording.

The predictor's generic figures are first scaled, kind by kind, to what the recording shows (matmuls,
attention, memory-bound kernels, optimizer, the host's speed). The gain of a change is then predicted at
the speeds of this machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from computeflow.cluster import Cluster
from computeflow.diagnosis.model_from_shapes import InferredJob
from computeflow.ledger import Ledger
from computeflow.prediction import Parameters, Prediction, Stack, load_parameters, predict
from computeflow.prediction.calibration.factors import Factors
from computeflow.prediction.device_time import Parts, step_parts
from computeflow.prediction.step_inputs import generation_of
from computeflow.telemetry.traces.rank_measurements import RankMeasurement
from computeflow.workload import Job, Layout

_PRODUCTS = ("aten::mm", "aten::addmm", "aten::_addmm_activation", "aten::_scaled_mm")
"""Operators of products with weights; the others with known FLOPs are attention's."""
MIN_LATE_SHARE = 0.02
"""Least share of a step with late launches from which the host's speed can be fitted."""
HOST_BOUND = 0.1
"""Above this share of late launches, kernels are too short to show the device's speed: each takes some
microseconds, whatever it does."""
KERNEL_FACTORS = ("matmul", "attention", "other", "loss")
_USUAL = {"eager": (0.80, 1.01, 1.75, 1.91), "compiled": (0.82, 1.03, 2.70, 1.92)}
"""Median factors of the healthy bf16 recordings of our H200 that set thresholds
(benchmarks/reports/calibration.md): there, short steps let clocks rise over the sustained ones."""
_LOWEST, _HIGHEST = 0.1, 10.0
"""Limits of a factor: beyond them the predictor has misunderstood the recording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the recorded run; None: unchanged."""

    stack: Stack | None = None
    layout: Layout | None = None
    job: Job | None = None
    compiled_host: float | None = None
    """Host time of a compiled block over that of an eager one; None: the predictor's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedRun:
    inferred: InferredJob
    cluster: Cluster
    measured: Parts
    """Seconds per step and device."""
    late_seconds: float
    """Seconds per step of gaps because the host is slow, for no other cause."""
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


def replay(rank: RankMeasurement, inferred: InferredJob, cluster: Cluster) -> PredictedRun:
    """The replay of one rank, which stands for all."""
    steps = len(rank.steps)
    run = PredictedRun(
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


def _measured_parts(rank: RankMeasurement, inferred: InferredJob) -> Parts:
    """Seconds per step, by the predictor's kinds of work."""
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


def fit(run: PredictedRun) -> Factors:
    """Measured over predicted time of each kind; the host's only where it is late enough to tell."""
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
    if run.late_seconds < MIN_LATE_SHARE * run.step_seconds:
        return found
    if run.late_seconds > HOST_BOUND * run.step_seconds:
        found = replace(found, **default_factors(run))
    return replace(found, host=_host_factor(run, found))


def default_factors(run: PredictedRun) -> dict[str, Any]:
    """Factors of the kernels where a recording cannot show its own."""
    hopper = generation_of(run.cluster.accelerator.name) == "hopper"
    half = run.inferred.job.precision == "bf16"
    known = _USUAL.get(run.inferred.stack.kernels) if hopper and half else None
    return dict(zip(KERNEL_FACTORS, known or (1.0,) * len(KERNEL_FACTORS), strict=True))


def _ratio(measured: float, predicted: float) -> float:
    if not (measured > 0 and predicted > 0):
        return 1.0
    return min(max(measured / predicted, _LOWEST), _HIGHEST)


def _host_factor(run: PredictedRun, factors: Factors) -> float:
    """The factor at which the predictor's host is as late as measured; lateness grows with it."""
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
