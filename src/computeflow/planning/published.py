"""What was published for a device: the highest MFU, so that a plan above it can say so."""

from __future__ import annotations

from collections.abc import Sequence

from computeflow.prediction.batch import LOW_PRECISIONS, PEAKS
from computeflow.prediction.cases import Case
from computeflow.workload import Job, flops_per_token


def best_mfu(cases: Sequence[Case], accelerator: str, job: Job) -> float | None:
    """Of the runs on the device in the job's precision (or as low a one); None where there is none."""
    low = job.precision in LOW_PRECISIONS
    found = [
        _mfu(case)
        for case in cases
        if case.cluster.accelerator.name == accelerator
        and (case.job.precision in LOW_PRECISIONS) == low
    ]
    return max(found, default=None)


def _mfu(case: Case) -> float:
    job, device = case.job, case.cluster.accelerator
    flops = flops_per_token(job.model, job.seq_len, prediction=job.multi_token).total
    peak = device.peak_flops(PEAKS.get(job.precision, job.precision))
    return job.step_tokens * flops / (case.measured_seconds * case.layout.gpus * peak)
