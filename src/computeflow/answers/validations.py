"""`validate`: how far predictions are from measured runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computeflow import codec
from computeflow.answers.answer import Answer
from computeflow.answers.checking import checked
from computeflow.answers.inputs import CatalogFiles, File, NewFile, open_catalog
from computeflow.answers.requests import read_calibration
from computeflow.errors import InputError
from computeflow.files.reading import read_text
from computeflow.files.writing import write_file
from computeflow.prediction import load_parameters
from computeflow.prediction.cases import PACKAGED, Case, read_cases
from computeflow.prediction.validation import Validation
from computeflow.prediction.validation import validate as validate_cases
from computeflow.simulation.published import Validated, validate_runs
from computeflow.simulation.traces import SOURCE, Predicted, predict_second_half
from computeflow.views.predictions import validation_table
from computeflow.views.run_pages import runs_page, runs_table, trace_table
from computeflow.views.tables import Table


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ValidateAnswer(Answer):
    """Steps."""

    validation: Validation

    def _data(self) -> dict[str, Any]:
        left_out = self.validation.skipped
        skipped = [{"row_id": row, "reason": reason} for row, reason in left_out.items()]
        data = codec.encode(self.validation) | {"skipped": skipped}
        return {"schema": "computeflow.validation/1", **data}

    def tables(self) -> list[Table]:
        return [validation_table(self.validation)]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ValidateRunsAnswer(Answer):
    """Whole published runs, and a trace of failures predicted from its first half."""

    runs: list[Validated]
    trace: list[Predicted]

    def _data(self) -> dict[str, Any]:
        return {
            "schema": "computeflow.run-validation/1",
            "runs": [codec.encode(run) for run in self.runs],
            "trace": [codec.encode(row) | {"agrees": row.agrees} for row in self.trace],
            "trace_source": SOURCE,
        }

    def tables(self) -> list[Table]:
        return [runs_table(self.runs), trace_table(self.trace, SOURCE)]


@checked
def validate(
    *,
    cases: Sequence[File] = (),
    runs: bool = False,
    page: NewFile | None = None,
    force: bool = False,
    calibration: File | None = None,
    catalog: CatalogFiles = (),
) -> ValidateAnswer | ValidateRunsAnswer:
    """Predict measured runs and say how far off the predictions are, source by source.

    `cases` are tables of steps in place of the packaged one; with `runs` whole published runs are
    simulated instead, and written to `page` as Markdown, too.
    """
    if runs:
        if cases or calibration or catalog:
            raise InputError("--runs goes with none of --cases, --calibration and --catalog")
        return _validate_runs(page, force=force)
    if page is not None:
        raise InputError("--page goes with --runs")
    facts = open_catalog(catalog)
    steps: list[Case] = []
    skipped: dict[str, str] = {}
    for path in cases or (PACKAGED,):
        some, left_out = read_cases(read_text(Path(path)), facts, str(path))
        steps += some
        skipped |= left_out
    measured = read_calibration(calibration, facts)
    return ValidateAnswer(validation=validate_cases(steps, skipped, load_parameters(), measured))


def _validate_runs(page: File | None, *, force: bool) -> ValidateRunsAnswer:
    answer = ValidateRunsAnswer(runs=validate_runs(), trace=predict_second_half())
    if page is not None:
        text = runs_page(answer.runs, answer.trace, SOURCE)
        write_file(page, text, "--page", force=force)
    return answer
