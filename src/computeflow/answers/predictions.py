"""`predict`: time, memory and power of a training step before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Unpack

from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import CatalogFiles, File, open_catalog
from computeflow.answers.requests import (
    JobOnLayoutOptions,
    JobOptions,
    JobRequest,
    choose_cluster,
    read_calibration,
    read_request,
    reading_data,
)
from computeflow.ledger import ledger_to_data
from computeflow.prediction import Prediction
from computeflow.prediction import predict as predict_step
from computeflow.prediction.stack import usual_stack
from computeflow.views.predictions import prediction_headline, prediction_tables
from computeflow.views.tables import Table
from computeflow.workload import Job

if TYPE_CHECKING:
    from computeflow.views.html_report import Part


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PredictAnswer(Answer):
    request: JobRequest
    prediction: Prediction

    @property
    def headline(self) -> str:
        return prediction_headline(self.prediction)

    def _data(self) -> dict[str, Any]:
        reading = self.request.reading
        data = {**prediction_data(self.prediction), "job": _job_data(self.prediction.job)}
        return data | (reading_data(reading) if reading else {})

    def tables(self) -> list[Table]:
        summary, ledger = prediction_tables(self.prediction)
        if self.request.reading is not None:
            from computeflow.views.reviews import with_reading

            summary = with_reading(summary, self.request.reading)
        return [summary, ledger]

    def parts(self) -> Sequence[Part]:
        from computeflow.views.figures import ledger_figure, memory_figure

        prediction = self.prediction
        return [self.tables()[0], ledger_figure(prediction.ledger), memory_figure(prediction)]

    @property
    def title(self) -> str:
        return self.request.title


@checked
def predict(
    model: str | None = None,
    *,
    on: str,
    storage: str | None = None,
    from_: File | None = None,
    format: str | None = None,
    stack: str | None = None,
    calibration: File | None = None,
    measured: float | None = None,
    catalog: CatalogFiles = (),
    **options: Unpack[JobOnLayoutOptions],
) -> PredictAnswer:
    """Predict a training step: time with its range, where it goes, memory, power.

    `measured` is a step's time in seconds, measured on this very job: one row for `calibrate`.
    """
    facts = open_catalog(catalog)
    request = read_request(
        model,
        choose_cluster(on, storage, facts),
        facts,
        options,
        from_=from_,
        format=format,
        stack=stack,
    )
    given = read_calibration(calibration, facts)
    stack_used = request.stack
    if measured is not None:
        from computeflow.prediction.calibration.calibrate import with_measured_step

        stack_used = stack_used or usual_stack(request.cluster.accelerator.vendor)
        given = with_measured_step(
            request.job, request.cluster, request.layout, stack_used, measured, given
        )
    return PredictAnswer(
        request=request,
        prediction=predict_step(
            request.job, request.cluster, request.layout, stack_used, calibration=given
        ),
    )


def _job_data(job: Job) -> dict[str, Any]:
    """The job as options state it, so that a saved prediction can be improved."""
    options = {name: getattr(job, name) for name in JobOptions.__annotations__}
    return {"model": job.model.name, **options}


def prediction_data(prediction: Prediction) -> dict[str, Any]:
    peak = prediction.ledger.peak
    assert peak is not None
    return {
        "schema": "computeflow.prediction/1",
        "step_seconds": prediction.step_seconds,
        "step_seconds_range": list(prediction.step_seconds_range),
        "tokens_per_second_per_gpu": prediction.tokens_per_second_per_gpu,
        "mfu": prediction.ledger.mfu,
        "mfu_palm": prediction.ledger.mfu_palm,
        "peak_flops": peak.flops,
        "peak_precision": peak.precision,
        "memory": {
            "bytes": prediction.memory_bytes,
            "by_owner": prediction.memory_by_owner,
            "by_stage": [asdict(stage) for stage in prediction.memory_by_stage],
            "fits": prediction.fits,
        },
        "watts_per_gpu": prediction.watts_per_gpu,
        "tokens_per_joule": prediction.tokens_per_joule,
        "ledger": ledger_to_data(prediction.ledger),
        "layout": asdict(prediction.layout),
        "stack": prediction.stack.name,
        "assumed": list(prediction.assumed),
        "evidence": prediction.evidence.to_dict(),
        "calibrated": list(prediction.calibrated),
    }
